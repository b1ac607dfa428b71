import { Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlugConnectedX } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useList } from '../../api/objects';
import { Confirm } from '../../ui/confirm';
import { actionColumn } from '../../ui/action-column';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { Since } from '../../ui/time';
import { endpointsPath } from './endpoint-address';

/** With its node in a cluster. */
type Connection = Schemas['ConnectionSummary'] & { node?: string };

const refreshMs = 2_000;

export function EndpointConnections({ id, mayChange }: { id: string; mayChange: boolean }) {
  const { t } = useLingui();
  const path = `${objectPath(endpointsPath, id)}/connections`;
  const list = useList<Connection>(path, {}, { every: refreshMs });
  const [closing, setClosing] = useState<Connection>();
  const close = useChange((connection: string) => send('DELETE', objectPath(path, connection)), [[path]]);
  const isCluster = list.rows?.some((row) => row.node !== undefined) ?? false;
  const columns: Column<Connection>[] = [
    {
      id: 'id',
      header: t`Connection`,
      sort: (row) => row.connection_id,
      cell: (row) => <span className="mono">{row.connection_id}</span>,
    },
    ...(isCluster
      ? [
          {
            id: 'node',
            header: t`Node`,
            sort: (row: Connection) => row.node ?? '',
            cell: (row: Connection) => row.node,
          },
        ]
      : []),
    { id: 'address', header: t`Address`, cell: (row) => <span className="mono">{row.peer_address}</span> },
    {
      id: 'since',
      header: t`Connected for`,
      sort: (row) => -row.connected_at_ms,
      cell: (row) => <Since ms={row.connected_at_ms} />,
    },
    ...(mayChange
      ? [actionColumn<Connection>({ label: <Trans>Disconnect</Trans>, icon: IconPlugConnectedX, onClick: setClosing })]
      : []),
  ];
  return (
    <>
      <DataTable
        name="endpoint-connections"
        label={t`Connections`}
        columns={columns}
        rowKey={(row) => row.connection_id}
        {...pagesOf(list)}
        empty={
          <EmptyState title={<Trans>Nobody is connected</Trans>}>
            <Trans>Connect with one of the example clients, or with the test panel.</Trans>
          </EmptyState>
        }
      />
      {closing && (
        <Confirm
          title={<Trans>Disconnect {closing.connection_id}?</Trans>}
          action={<Trans>Disconnect</Trans>}
          call={{
            method: 'DELETE',
            path: objectPath(path, closing.connection_id),
            ctl: `endpoints disconnect ${id} ${closing.connection_id}`,
          }}
          isPending={close.isPending}
          error={close.error}
          onClose={() => setClosing(undefined)}
          onConfirm={() => close.mutate(closing.connection_id, { onSuccess: () => setClosing(undefined) })}
        >
          <Text size="sm">
            <Trans>
              This closes the connection from {closing.peer_address}. The client may connect again; disable the endpoint
              to prevent that.
            </Trans>
          </Text>
        </Confirm>
      )}
    </>
  );
}
