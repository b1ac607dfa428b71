import { ActionIcon, Button, Checkbox, Text, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconEdit, IconPlayerPlay, IconPlayerStop, IconPlus, IconTrash } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { DataTable, type Column } from '../../ui/data-table';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { CertificateName, Certificates, Expiry } from './certificates';
import { ListenerEditor } from './listener-editor';
import { listenersPath, useCertificates } from './listener-objects';

type Listener = Schemas['Listener'];

const path = listenersPath;
const refreshMs = 3_000;

/** Where clients connect, and the certificates in use. */
export function Listeners() {
  const { t } = useLingui();
  const caller = useCaller();
  const mayChange = mayOnNode(caller, 'admin');
  const list = useRead(['listeners'], (signal) => send<{ data: Listener[] }>('GET', path, { signal }), {
    every: refreshMs,
  });
  const certificates = useCertificates();
  const [stopping, setStopping] = useState<Listener>();
  const [edited, setEdited] = useState<Listener | 'new'>();
  const [deleted, setDeleted] = useState<Listener>();
  const start = useChange((name: string) => send('POST', `${objectPath(path, name)}/start`), [['listeners']]);
  const columns: Column<Listener>[] = [
    {
      id: 'name',
      header: t`Name`,
      sort: (row) => row.name,
      cell: (row) => row.name,
    },
    {
      id: 'state',
      header: t`State`,
      cell: (row) =>
        row.running ? (
          <StateBadge health="good">
            <Trans>listening</Trans>
          </StateBadge>
        ) : row.problem ? (
          <span title={row.problem}>
            <StateBadge health="critical">
              <Trans>not opened: {row.problem}</Trans>
            </StateBadge>
          </span>
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
    {
      id: 'origin',
      header: t`Origin`,
      sort: (row) => row.origin,
      cell: (row) => (row.origin === 'api' ? <Trans>API</Trans> : <Trans>configuration</Trans>),
    },
    {
      id: 'certificate',
      header: t`Certificate`,
      cell: (row) => (row.certificate ? <CertificateName certificate={row.certificate} /> : '–'),
    },
    {
      id: 'expires',
      header: t`Expires`,
      sort: (row) => row.certificate?.not_after_ms,
      cell: (row) => <Expiry ms={row.certificate?.not_after_ms} />,
    },
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            cell: (row: Listener) => (
              <span className="row">
                {row.running ? (
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
                )}
                {row.origin === 'api' && (
                  <>
                    <ActionIcon aria-label={t`Change ${row.name}`} onClick={() => setEdited(row)}>
                      <IconEdit size={16} />
                    </ActionIcon>
                    <ActionIcon aria-label={t`Delete ${row.name}`} onClick={() => setDeleted(row)}>
                      <IconTrash size={16} />
                    </ActionIcon>
                  </>
                )}
              </span>
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
        toolbar={
          <>
            <Title order={2}>
              <Trans>Listeners</Trans>
            </Title>
            <div className="row wrap table-actions">
              <ShowCall method="GET" path={path} ctl="listeners list" />
              {mayChange && (
                <Button leftSection={<IconPlus size={14} />} onClick={() => setEdited('new')}>
                  <Trans>New listener</Trans>
                </Button>
              )}
            </div>
          </>
        }
        empty={<EmptyState title={<Trans>No listeners</Trans>} />}
      />
      <Certificates mayChange={mayChange} />
      {edited && certificates.data && (
        <ListenerEditor
          listener={edited === 'new' ? undefined : edited}
          certificates={certificates.data}
          onClose={() => setEdited(undefined)}
        />
      )}
      {deleted && <DeleteListener listener={deleted} onClose={() => setDeleted(undefined)} />}
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

function DeleteListener({ listener, onClose }: { listener: Listener; onClose: () => void }) {
  const { t } = useLingui();
  const { name } = listener;
  return (
    <ConfirmDeletion
      title={<Trans>Delete the listener {name}?</Trans>}
      action={<Trans>Delete the listener</Trans>}
      call={{ path: objectPath(path, name), ctl: `listeners delete ${name}` }}
      onClose={onClose}
      invalidates={[['listeners'], ['certificates']]}
      message={t`${name} was deleted.`}
    >
      <Text size="sm">
        <Trans>
          Nobody can connect to {listener.address} any more, also after a restart. Its{' '}
          {formatNumber(listener.connections)} connections are closed.
        </Trans>
      </Text>
    </ConfirmDeletion>
  );
}
