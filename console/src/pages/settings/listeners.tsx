import { Button, Checkbox, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPlay, IconPlayerStop } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { DataTable, type Column } from '../../ui/data-table';
import { Panel } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { settingText } from './setting-value';
import { useSettings } from './settings-list';

type Listener = Schemas['ListenerInfo'];

const path = '/api/v1/listeners';
const refreshMs = 3_000;

/** Where clients connect, and the certificates in use. */
export function Listeners() {
  const { t } = useLingui();
  const caller = useCaller();
  const mayChange = mayOnNode(caller, 'admin');
  const list = useRead(['listeners'], (signal) => send<{ data: Listener[] }>('GET', path, { signal }), {
    every: refreshMs,
  });
  const [stopping, setStopping] = useState<Listener>();
  const start = useChange((name: string) => send('POST', `${objectPath(path, name)}/start`), [['listeners']]);
  const columns: Column<Listener>[] = [
    { id: 'name', header: t`Name`, sort: (row) => row.name, cell: (row) => row.name },
    {
      id: 'state',
      header: t`State`,
      cell: (row) =>
        row.running ? (
          <StateBadge health="good">
            <Trans>listening</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="warning">
            <Trans>stopped</Trans>
          </StateBadge>
        ),
    },
    { id: 'protocol', header: t`Protocol`, sort: (row) => row.protocol, cell: (row) => row.protocol },
    { id: 'address', header: t`Address`, cell: (row) => <span className="mono">{row.address}</span> },
    {
      id: 'connections',
      header: t`Connections`,
      align: 'right',
      sort: (row) => row.connections,
      cell: (row) => `${formatNumber(row.connections)} / ${formatNumber(row.max_connections)}`,
    },
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            cell: (row: Listener) =>
              row.running ? (
                <Button
                  size="compact-xs"
                  variant="default"
                  leftSection={<IconPlayerStop size={12} />}
                  onClick={() => setStopping(row)}
                >
                  <Trans>Stop</Trans>
                </Button>
              ) : (
                <Button
                  size="compact-xs"
                  variant="default"
                  leftSection={<IconPlayerPlay size={12} />}
                  loading={start.isPending}
                  onClick={() =>
                    start.mutate(row.name, {
                      onError: (error) => notifications.show({ color: 'red', message: error.message }),
                    })
                  }
                >
                  <Trans>Start</Trans>
                </Button>
              ),
          },
        ]
      : []),
  ];
  return (
    <div className="page">
      <DataTable
        name="listeners"
        label={t`Listeners`}
        columns={columns}
        rows={list.data?.data}
        rowKey={(row) => row.name}
        error={list.error}
        retry={() => void list.refetch()}
        empty={
          <EmptyState title={<Trans>No listeners</Trans>}>
            <Trans>Listeners are part of the configuration file.</Trans>
          </EmptyState>
        }
      />
      <Certificates />
      {stopping && <StopListener listener={stopping} onClose={() => setStopping(undefined)} />}
    </div>
  );
}

function StopListener({ listener, onClose }: { listener: Listener; onClose: () => void }) {
  const { t } = useLingui();
  const [disconnects, setDisconnects] = useState(false);
  const body = { disconnect_clients: disconnects };
  const stop = useChange(() => send('POST', `${objectPath(path, listener.name)}/stop`, { body }), [['listeners']]);
  return (
    <Confirm
      title={<Trans>Stop the listener {listener.name}?</Trans>}
      action={<Trans>Stop</Trans>}
      call={{
        method: 'POST',
        path: `${objectPath(path, listener.name)}/stop`,
        body,
        ctl: `listeners stop ${listener.name}`,
      }}
      isPending={stop.isPending}
      error={stop.error}
      onClose={onClose}
      onConfirm={() => stop.mutate(undefined, { onSuccess: onClose })}
    >
      <Text size="sm" mb="sm">
        <Trans>
          Nobody can connect to {listener.address} until the listener is started again. It has{' '}
          {formatNumber(listener.connections)} connections.
        </Trans>
      </Text>
      <Checkbox
        label={t`Also close these connections`}
        checked={disconnects}
        onChange={(event) => setDisconnects(event.currentTarget.checked)}
      />
    </Confirm>
  );
}

interface Certificate {
  section: string;
  certificate: string;
  authorities: string;
}

/** Files that listeners and the API use for TLS; the node reloads them when they change. */
function Certificates() {
  const { t } = useLingui();
  const settings = useSettings();
  const rows = settings.data?.data
    .filter(({ key, value }) => key.endsWith('.tls.certificate') && value != null)
    .map(({ key, value }): Certificate => {
      const section = key.replace(/\.tls\.certificate$/, '');
      const authorities = settings.data?.data.find((each) => each.key === `${section}.tls.client_ca`);
      return { section, certificate: settingText(value), authorities: settingText(authorities?.value) };
    });
  const columns: Column<Certificate>[] = [
    { id: 'section', header: t`Used by`, cell: (row) => row.section },
    { id: 'file', header: t`Certificate`, cell: (row) => <span className="mono">{row.certificate}</span> },
    {
      id: 'ca',
      header: t`Authorities of clients`,
      cell: (row) => <span className="mono">{row.authorities || '–'}</span>,
    },
  ];
  if (rows?.length === 0) {
    return (
      <Panel title={<Trans>Certificates</Trans>}>
        <Text size="sm" c="dimmed">
          <Trans>
            No listener uses TLS. Set the certificate and the private key of a listener in the configuration file before
            other machines can reach it.
          </Trans>
        </Text>
      </Panel>
    );
  }
  return (
    <DataTable
      name="certificates"
      label={t`Certificates`}
      columns={columns}
      rows={rows}
      rowKey={(row) => row.section}
      error={settings.error}
      empty={null}
    />
  );
}
