import { Anchor, Button, Stack, Text } from '@mantine/core';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { useState, type ReactNode } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { CopyText } from '../../ui/copy';
import { DataTable, type Column } from '../../ui/data-table';
import { Facts, Page, Panel } from '../../ui/page';
import { quoted, ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { Ago, Since } from '../../ui/time';
import { useSettings } from '../settings/settings-list';
import { DurableSessions } from './durable-sessions';
import { Problem } from './problem';
import { RebalanceButton } from './rebalance';
import { TelemetryCopies } from './telemetry-copies';

type Status = Schemas['ClusterStatus'];
type Member = Schemas['ClusterMember'];
type NatsServer = Schemas['ClusterNatsServer'];

const path = '/api/v1/cluster';
const membersPath = `${path}/members`;
const serversPath = `${path}/servers`;
const refreshMs = 2_000;

/** The nodes that act as one broker, as the node that answers sees them. */
export default function ClusterPage() {
  const { t } = useLingui();
  const settings = useSettings();
  // Without a cluster the node answers 404, so it is not asked then.
  const isMember = settings.data?.data.some(({ key, value }) => key === 'cluster.node' && value !== null);
  const status = useRead([path], (signal) => send<Status>('GET', path, { signal }), {
    every: refreshMs,
    enabled: isMember === true,
  });
  const cluster = status.data;
  const error = settings.error ?? status.error;
  return (
    <Page
      title={t`Cluster`}
      aside={cluster && <Summary cluster={cluster} />}
      description={cluster && <Trans>Nodes that act as one broker, as {cluster.node} sees them.</Trans>}
      actions={
        <>
          {cluster && cluster.members.length > 1 && <RebalanceButton />}
          <ShowCall method="GET" path={path} ctl="cluster status" />
        </>
      }
    >
      {cluster ? (
        <Stack gap="md">
          <Members cluster={cluster} />
          <div className="grid">
            <Nats cluster={cluster} />
            {cluster.nats.managed && <Servers />}
            <Messages cluster={cluster} />
            <DurableSessions standby={cluster.standby} />
            <TelemetryCopies copy={cluster.telemetry_copy} />
          </div>
        </Stack>
      ) : isMember === false ? (
        <Alone />
      ) : error ? (
        <ErrorState error={error} retry={() => void (settings.error ? settings : status).refetch()} />
      ) : (
        <Loading />
      )}
    </Page>
  );
}

function Alone() {
  return (
    <EmptyState
      title={<Trans>This node is not a member of a cluster</Trans>}
      actions={<CopyText text="tidegate cluster up --nodes 3" />}
    >
      <Trans>
        Several nodes can act as one broker: clients of all nodes exchange messages, and when one node fails, the others
        continue. Set cluster.node and cluster.managed or cluster.urls. This command starts three nodes on one machine,
        to try it out.
      </Trans>
    </EmptyState>
  );
}

function Summary({ cluster }: { cluster: Status }) {
  const missing = cluster.members.filter((member) => !member.is_reachable).length;
  if (cluster.nats.state !== 'ready') {
    return (
      <StateBadge health="critical">
        <Trans>not connected</Trans>
      </StateBadge>
    );
  }
  if (cluster.problem || !cluster.is_complete) {
    return (
      <StateBadge health="warning">
        <Trans>degraded</Trans>
      </StateBadge>
    );
  }
  return missing > 0 ? (
    <StateBadge health="warning">
      <Plural value={missing} one="# member is not reachable" other="# members are not reachable" />
    </StateBadge>
  ) : (
    <StateBadge health="good">
      <Trans>all members are reachable</Trans>
    </StateBadge>
  );
}

function Members({ cluster }: { cluster: Status }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [evicted, setEvicted] = useState<Member>();
  const [drained, setDrained] = useState<Member>();
  const columns: Column<Member>[] = [
    {
      id: 'node',
      header: t`Node`,
      sort: ({ node }) => node,
      cell: ({ node, is_self, api_url }) =>
        is_self ? (
          <span>
            {node} <Trans>(this node)</Trans>
          </span>
        ) : api_url ? (
          <Anchor href={api_url} target="_blank" rel="noreferrer" size="sm">
            {node}
          </Anchor>
        ) : (
          node
        ),
    },
    {
      id: 'state',
      header: t`State`,
      width: 210,
      sort: ({ is_reachable }) => Number(is_reachable),
      cell: (member) => <MemberState member={member} />,
    },
    {
      id: 'round-trip',
      header: t`Round trip`,
      align: 'right',
      width: 110,
      sort: ({ round_trip_ms }) => round_trip_ms ?? -1,
      cell: ({ round_trip_ms }) => (round_trip_ms == null ? '–' : `${formatNumber(round_trip_ms)} ms`),
    },
    {
      id: 'queued',
      header: t`Queued`,
      align: 'right',
      width: 100,
      sort: ({ queued_bytes }) => queued_bytes,
      cell: ({ queued_bytes, is_self }) => (is_self ? '–' : formatBytes(queued_bytes)),
    },
    {
      id: 'connections',
      header: t`Connections`,
      align: 'right',
      width: 110,
      sort: ({ connections }) => connections,
      cell: ({ connections }) => formatNumber(connections),
    },
    {
      id: 'sessions',
      header: t`Sessions`,
      align: 'right',
      width: 100,
      sort: ({ sessions }) => sessions,
      cell: ({ sessions }) => formatNumber(sessions),
    },
    { id: 'version', header: t`Version`, width: 100, sort: ({ version }) => version, cell: ({ version }) => version },
    {
      id: 'started',
      header: t`Started`,
      width: 140,
      sort: ({ started_ms }) => started_ms,
      cell: ({ started_ms }) => <Ago ms={started_ms} />,
    },
    {
      id: 'reference',
      header: t`Clients connect to`,
      cell: ({ server_reference }) => server_reference ?? '–',
      isHidden: true,
    },
    {
      id: 'repeated',
      header: t`Repeated frames`,
      align: 'right',
      cell: ({ repeated_frames }) => formatNumber(repeated_frames),
      isHidden: true,
    },
    {
      id: 'action',
      header: t`Action`,
      width: 120,
      cell: (member) => {
        if (!mayOnNode(caller, 'admin')) return null;
        if (member.is_reachable) {
          return (
            <Button size="compact-xs" variant="default" onClick={() => setDrained(member)}>
              {member.is_draining ? <Trans>Cancel drain</Trans> : <Trans>Drain</Trans>}
            </Button>
          );
        }
        return (
          !member.is_self && (
            <Button size="compact-xs" variant="default" onClick={() => setEvicted(member)}>
              <Trans>Remove</Trans>
            </Button>
          )
        );
      },
    },
  ];
  return (
    <>
      <DataTable
        name="cluster-members"
        label={t`Members of the cluster`}
        columns={columns}
        rows={cluster.members}
        rowKey={({ node }) => node}
        empty={<EmptyState title={<Trans>No members</Trans>} />}
      />
      {drained && <DrainDialog member={drained} onClose={() => setDrained(undefined)} />}
      {evicted && (
        <ConfirmDeletion
          title={<Trans>Remove {evicted.node} from the cluster?</Trans>}
          action={<Trans>Remove the member</Trans>}
          call={{ path: objectPath(membersPath, evicted.node), ctl: `cluster evict ${quoted(evicted.node)}` }}
          onClose={() => setEvicted(undefined)}
          invalidates={[[path]]}
          message={t`${evicted.node} was removed from the cluster.`}
        >
          <Text size="sm">
            <Trans>
              The other nodes forget {evicted.node} and its sessions. With managed servers, its NATS server no longer
              counts for the majority. Its data stay on its machine. A node that is started again joins again.
            </Trans>
          </Text>
        </ConfirmDeletion>
      )}
    </>
  );
}

/** Starts or cancels the drain of a member. */
function DrainDialog({ member: { node, is_draining }, onClose }: { member: Member; onClose: () => void }) {
  const method = is_draining ? 'DELETE' : 'POST';
  const drainPath = `${objectPath(membersPath, node)}/drain`;
  const change = useChange(() => send(method, drainPath), [[path]]);
  return (
    <Confirm
      title={is_draining ? <Trans>Cancel the drain of {node}?</Trans> : <Trans>Drain {node}?</Trans>}
      action={is_draining ? <Trans>Cancel drain</Trans> : <Trans>Drain</Trans>}
      call={{ method, path: drainPath, ctl: `cluster drain ${quoted(node)}${is_draining ? ' --cancel' : ''}` }}
      isPending={change.isPending}
      error={change.error}
      isSafe={is_draining}
      onClose={onClose}
      onConfirm={() => change.mutate(undefined, { onSuccess: onClose })}
    >
      <Text size="sm">
        {is_draining ? (
          <Trans>The node accepts clients again.</Trans>
        ) : (
          <Trans>
            The node accepts no new clients and disconnects those that it has, some per second. Its durable sessions
            stay, and the other nodes pass their clients on to it until it is stopped.
          </Trans>
        )}
      </Text>
    </Confirm>
  );
}

function MemberState({ member }: { member: Member }) {
  if (member.is_reachable && member.is_draining) {
    return (
      <StateBadge health="warning">
        <Trans>draining</Trans>
      </StateBadge>
    );
  }
  if (member.is_reachable && member.rebalance_target !== null) {
    const goal = formatNumber(member.rebalance_target);
    return (
      <StateBadge health="warning">
        <Trans>rebalancing to {goal}</Trans>
      </StateBadge>
    );
  }
  if (member.is_reachable) {
    return (
      <StateBadge health="good">
        <Trans>reachable</Trans>
      </StateBadge>
    );
  }
  const silence = formatDuration(member.silent_ms / 1000);
  return (
    <StateBadge health="critical">
      <Trans>silent for {silence}</Trans>
    </StateBadge>
  );
}

function Nats({ cluster: { nats, problem, is_complete } }: { cluster: Status }) {
  const server = nats.managed;
  return (
    <Panel title={<Trans>NATS</Trans>}>
      <Facts
        rows={[
          [<Trans>State</Trans>, <NatsState state={nats.state} />],
          [<Trans>Since</Trans>, <Since ms={nats.since_ms} />],
          [<Trans>Server</Trans>, nats.server_name ?? '–'],
          [<Trans>Version</Trans>, nats.server_version ?? '–'],
          [<Trans>Round trip</Trans>, nats.round_trip_ms == null ? '–' : `${formatNumber(nats.round_trip_ms, 1)} ms`],
          [<Trans>Reconnections</Trans>, formatNumber(nats.reconnects)],
          ...(server ? managedRows(server) : []),
        ]}
      />
      {nats.state !== 'ready' && nats.last_error && <Problem>{nats.last_error}</Problem>}
      {problem && <Problem>{problem}</Problem>}
      {!is_complete && (
        <Problem>
          <Trans>The subscriptions of some members are not known yet.</Trans>
        </Problem>
      )}
    </Panel>
  );
}

function managedRows(server: Schemas['ClusterServer']): [ReactNode, ReactNode][] {
  return [
    [
      <Trans>Managed server</Trans>,
      server.is_running ? (
        <StateBadge health="good">
          <Trans>running</Trans>
        </StateBadge>
      ) : (
        <StateBadge health="critical">{server.last_error ?? <Trans>not running</Trans>}</StateBadge>
      ),
    ],
    [<Trans>Memory</Trans>, server.resident_bytes == null ? '–' : formatBytes(server.resident_bytes)],
    [<Trans>Restarts</Trans>, formatNumber(server.restarts)],
  ];
}

/** The NATS servers that count for the majority, witnesses among them. */
function Servers() {
  const servers = useRead([serversPath], (signal) => send<Schemas['ClusterServers']>('GET', serversPath, { signal }), {
    every: refreshMs,
  });
  return (
    <Panel title={<Trans>NATS servers</Trans>}>
      {servers.error ? (
        <Problem>{servers.error.message}</Problem>
      ) : (
        <Facts rows={(servers.data?.data ?? []).map((server) => [server.name, <ServerState server={server} />])} />
      )}
      <Text size="sm" c="dimmed" mt="xs">
        <Trans>
          More than half of them must be connected so that the configuration can be changed, and the sessions of a node
          that fails are continued.
        </Trans>
      </Text>
    </Panel>
  );
}

function ServerState({ server }: { server: NatsServer }) {
  return (
    <>
      <ServerBadge server={server} />
      {!server.has_node && (
        <Text size="sm" c="dimmed" span ml="xs">
          <Trans>without a node</Trans>
        </Text>
      )}
    </>
  );
}

function ServerBadge({ server }: { server: NatsServer }) {
  if (!server.is_connected) {
    const silence = formatDuration(server.silent_ms / 1000);
    return (
      <StateBadge health="critical">
        <Trans>silent for {silence}</Trans>
      </StateBadge>
    );
  }
  if (server.is_leader) {
    return (
      <StateBadge health="good">
        <Trans>leader</Trans>
      </StateBadge>
    );
  }
  if (!server.is_current) {
    return (
      <StateBadge health="warning">
        <Plural value={server.missing_changes} one="# change behind" other="# changes behind" />
      </StateBadge>
    );
  }
  return (
    <StateBadge health="good">
      <Trans>connected</Trans>
    </StateBadge>
  );
}

function NatsState({ state }: { state: Schemas['NatsConnectionState'] }) {
  switch (state) {
    case 'ready':
      return (
        <StateBadge health="good">
          <Trans>connected</Trans>
        </StateBadge>
      );
    case 'unusable':
      return (
        <StateBadge health="critical">
          <Trans>cannot be used</Trans>
        </StateBadge>
      );
    default:
      return (
        <StateBadge health="critical">
          <Trans>not reachable</Trans>
        </StateBadge>
      );
  }
}

function Messages({ cluster: { messages } }: { cluster: Status }) {
  return (
    <Panel title={<Trans>Messages between nodes since the start</Trans>}>
      <Facts
        rows={[
          [<Trans>Sent</Trans>, formatNumber(messages.sent)],
          [<Trans>Received</Trans>, formatNumber(messages.received)],
          [<Trans>Dropped, because a node was behind (QoS 0)</Trans>, formatNumber(messages.dropped_behind)],
          [<Trans>Without a member of a shared subscription</Trans>, formatNumber(messages.dropped_no_member)],
          [<Trans>Not readable</Trans>, formatNumber(messages.invalid)],
          [<Trans>Lost frames, which were sent again</Trans>, formatNumber(messages.lost_frames)],
        ]}
      />
    </Panel>
  );
}
