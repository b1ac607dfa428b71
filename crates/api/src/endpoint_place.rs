//! Where the requests of a route are executed in a cluster. Without a cluster, all are executed by the node that gets them.

use serde_json::Value;

use crate::sorted_list::SortValue;

/// Of the routes whose requests are not executed by the node that gets them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EndpointPlace {
    /// The node that has the session of the device in this path parameter, or had it last.
    Device(&'static str),
    /// The node that has the object. `path` is that of the route which reads the object, and has the parameter `id`. The
    /// route has the parameter [`NODE`](crate::query_parameters::NODE).
    Object { path: &'static str },
    /// This node if it has the alarm with the number in the path parameter `id`, as all nodes have those of devices; otherwise the
    /// node that has it. The route has the parameter [`NODE`](crate::query_parameters::NODE).
    Alarm,
    /// The node that has the file or transfer with the id in this path parameter.
    File(&'static str),
    /// This node. If another node has the file or transfer with the id in this path parameter, the request is rejected.
    LocalFile(&'static str),
    /// The handler passes the request on if it belongs to another node.
    ChosenByHandler,
    /// The node that runs the firmware campaign with the number in this path parameter. All nodes know which one that is. The
    /// route has the parameter [`NODE`](crate::query_parameters::NODE).
    FirmwareCampaign(&'static str),
    /// All nodes; their answers are merged.
    AllNodes(MergedAnswer),
}

/// How the answers of nodes become one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MergedAnswer {
    /// Pages of rows with ids, which are the cursors.
    Rows(MergedRows),
    /// Pages of alarms: this node has all those of devices, and the others have those about themselves. The cursor is the
    /// same for all nodes.
    Alarms(MergedRows),
    /// The numbers of alarms, which are at the nodes in the same way, are added.
    AlarmCounts,
    /// Lists without pages, whose rows name their node. With the name of a field with a time, the newest rows come first.
    Lists(Option<&'static str>),
    /// Those of this node, with the devices online at all nodes.
    DeviceCounts,
    /// The statistics of a relay endpoint are added.
    RelayStatus,
    /// Pages of them.
    RelayStatuses,
    /// Pages of connections of a relay endpoint.
    RelayConnections,
    /// Last messages of a relay endpoint; the body is a list.
    RelayMessages,
    /// The answer of this node, if all nodes have executed the request.
    Executed,
    /// The answer of the node that has the object; the others do not find it.
    ExecutedByOwner,
}

/// Pages of rows with the field `id`, a number or a text, which is the cursor of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergedRows {
    /// The field with a time by which the newest rows come first, unless the request has a parameter `sort`.
    pub(crate) time_field: &'static str,
    /// The value of a field by which a list with the parameter `sort` is sorted.
    pub(crate) sort_value: fn(&Value, &str) -> SortValue,
}
