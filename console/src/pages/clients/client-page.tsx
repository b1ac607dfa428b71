import { Button, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlugConnectedX } from '@tabler/icons-react';
import { useState } from 'react';
import { Link, useLocation, useParams } from 'wouter';
import { api, unwrap, useChange, usePages, useRead, type Schemas } from '../../api/client';
import { withQuery } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { Copy } from '../../ui/copy';
import { DataTable, type Column } from '../../ui/data-table';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago, Since } from '../../ui/time';

type Client = Schemas['ClientInfo'];

const refreshMs = 2_000;
const neverExpires = 0xffff_ffff;

export default function ClientPage() {
  const { t } = useLingui();
  const { id = '' } = useParams<{ id: string }>();
  const clientId = decodeURIComponent(id);
  const path = { params: { path: { client_id: clientId } } };
  const client = useRead(
    ['clients', 'one', clientId],
    (signal) => unwrap(api.GET('/api/v1/sessions/{client_id}', { ...path, signal })),
    { every: refreshMs },
  );
  if (!client.data) {
    return (
      <PendingPage
        title={clientId}
        query={client}
        missing={
          <EmptyState
            title={<Trans>No such client</Trans>}
            actions={
              <Link href={withQuery('/clients', { tab: 'rejected', client: clientId })} className="link">
                <Trans>Was it rejected?</Trans>
              </Link>
            }
          >
            <Trans>No client with this id is connected, and it has no session.</Trans>
          </EmptyState>
        }
      />
    );
  }
  const data = client.data;
  return (
    <Page
      title={clientId}
      aside={
        <>
          <Copy value={clientId} label={t`Copy the client id`} />
          <StateBadge health={data.connected ? 'good' : 'unknown'}>
            {data.connected ? <Trans>connected</Trans> : <Trans>not connected</Trans>}
          </StateBadge>
        </>
      }
      actions={
        <>
          <ShowCall
            method="GET"
            path={`/api/v1/sessions/${encodeURIComponent(clientId)}`}
            ctl={`sessions get ${clientId}`}
          />
          <EndSession client={data} />
        </>
      }
    >
      <PageTabs
        tabs={[
          { id: 'overview', label: <Trans>Overview</Trans>, content: <Overview client={data} /> },
          {
            id: 'subscriptions',
            label: (
              <>
                <Trans>Subscriptions</Trans> ({formatNumber(data.subscriptions)})
              </>
            ),
            content: <Subscriptions clientId={clientId} />,
          },
          {
            id: 'queue',
            label: (
              <>
                <Trans>Queue</Trans> ({formatNumber(data.queued_messages)})
              </>
            ),
            content: <Queue clientId={clientId} />,
          },
        ]}
      />
    </Page>
  );
}

function Overview({ client }: { client: Client }) {
  const none = <span className="dimmed">–</span>;
  return (
    <div className="grid">
      <Panel title={<Trans>Connection</Trans>}>
        <Facts
          rows={[
            client.connected
              ? [<Trans>Connected for</Trans>, client.connected_at_ms ? <Since ms={client.connected_at_ms} /> : none]
              : [<Trans>Disconnected</Trans>, <Ago ms={client.disconnected_at_ms} />],
            [<Trans>Address</Trans>, <span className="mono">{client.peer_address ?? '–'}</span>],
            [<Trans>Listener</Trans>, client.listener ?? none],
            [<Trans>MQTT</Trans>, client.protocol_version],
            [<Trans>User</Trans>, client.username ?? none],
            [<Trans>Device</Trans>, client.device ?? none],
            [<Trans>Keep-alive</Trans>, client.keep_alive_s > 0 ? formatDuration(client.keep_alive_s) : none],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Session</Trans>}>
        <Facts
          rows={[
            [<Trans>Created</Trans>, <Ago ms={client.session_created_at_ms} />],
            [
              <Trans>Kept after disconnect</Trans>,
              client.session_expiry_s === 0 ? (
                <Trans>no</Trans>
              ) : client.session_expiry_s === neverExpires ? (
                <Trans>for ever</Trans>
              ) : (
                formatDuration(client.session_expiry_s)
              ),
            ],
            [<Trans>Clean start</Trans>, client.clean_start ? <Trans>yes</Trans> : <Trans>no</Trans>],
            [<Trans>Shard</Trans>, client.shard],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Messages</Trans>}>
        <Facts
          rows={[
            [<Trans>Received from the client</Trans>, formatNumber(client.messages_received)],
            [<Trans>Sent to the client</Trans>, formatNumber(client.messages_sent)],
            [
              <Trans>Dropped</Trans>,
              client.messages_dropped > 0 ? (
                <span className="state-warning">{formatNumber(client.messages_dropped)}</span>
              ) : (
                '0'
              ),
            ],
            [<Trans>In flight</Trans>, formatNumber(client.inflight)],
            [
              <Trans>Queued</Trans>,
              <>
                {formatNumber(client.queued_messages)} ({formatBytes(client.queued_bytes)})
              </>,
            ],
            [
              <Trans>Oldest queued message</Trans>,
              client.queued_messages > 0 ? formatDuration(client.queue_age_ms / 1000) : none,
            ],
            [<Trans>Waiting for the socket</Trans>, formatBytes(client.outbox_bytes)],
          ]}
        />
      </Panel>
    </div>
  );
}

function Subscriptions({ clientId }: { clientId: string }) {
  const { t } = useLingui();
  const list = usePages<Schemas['SubscriptionInfo']>(
    ['clients', 'subscriptions', clientId],
    (after, signal) =>
      unwrap(api.GET('/api/v1/subscriptions', { params: { query: { client_id: clientId, after } }, signal })),
    { every: refreshMs * 2 },
  );
  const columns: Column<Schemas['SubscriptionInfo']>[] = [
    { id: 'filter', header: t`Topic filter`, cell: (row) => <span className="mono">{row.topic_filter}</span> },
    { id: 'qos', header: t`QoS`, cell: (row) => row.qos },
    { id: 'no-local', header: t`No local`, cell: (row) => (row.no_local ? t`yes` : '–') },
    { id: 'rap', header: t`Retain as published`, cell: (row) => (row.retain_as_published ? t`yes` : '–') },
    { id: 'id', header: t`Identifier`, align: 'right', cell: (row) => row.subscription_identifier ?? '–' },
  ];
  return (
    <DataTable
      name="client-subscriptions"
      label={t`Subscriptions`}
      columns={columns}
      rows={list.rows}
      rowKey={(row) => row.topic_filter}
      error={list.error}
      hasMore={list.hasNextPage}
      isLoadingMore={list.isFetchingNextPage}
      loadMore={() => void list.fetchNextPage()}
      empty={<EmptyState title={<Trans>No subscriptions</Trans>} />}
    />
  );
}

function Queue({ clientId }: { clientId: string }) {
  const { t } = useLingui();
  const list = usePages<Schemas['QueuedMessageView']>(['clients', 'queue', clientId], (after, signal) =>
    unwrap(
      api.GET('/api/v1/sessions/{client_id}/queue', {
        params: { path: { client_id: clientId }, query: { after } },
        signal,
      }),
    ),
  );
  const columns: Column<Schemas['QueuedMessageView']>[] = [
    { id: 'topic', header: t`Topic`, cell: (row) => <span className="mono">{row.message.topic}</span> },
    { id: 'qos', header: t`QoS`, cell: (row) => row.message.qos },
    {
      id: 'payload',
      header: t`Payload`,
      cell: (row) => <span className="mono">{String(row.message.payload ?? '')}</span>,
    },
  ];
  return (
    <DataTable
      name="client-queue"
      label={t`Queued messages`}
      columns={columns}
      rows={list.rows}
      rowKey={(row) => String(row.position)}
      error={list.error}
      hasMore={list.hasNextPage}
      isLoadingMore={list.isFetchingNextPage}
      loadMore={() => void list.fetchNextPage()}
      empty={
        <EmptyState title={<Trans>Nothing is queued</Trans>}>
          <Trans>Messages wait here while the client is away or slow.</Trans>
        </EmptyState>
      }
    />
  );
}

/** Ends the connection and the session. */
function EndSession({ client }: { client: Client }) {
  const caller = useCaller();
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const [isAsking, setAsking] = useState(false);
  const params = { params: { path: { client_id: client.client_id } } };
  const path = `/api/v1/${client.connected ? 'clients' : 'sessions'}/${encodeURIComponent(client.client_id)}`;
  const end = useChange(
    () =>
      client.connected
        ? unwrap(api.DELETE('/api/v1/clients/{client_id}', params))
        : unwrap(api.DELETE('/api/v1/sessions/{client_id}', params)),
    [['clients']],
  );
  if (!mayOnNode(caller, 'operator')) return null;
  return (
    <>
      <Button variant="default" leftSection={<IconPlugConnectedX size={14} />} onClick={() => setAsking(true)}>
        {client.connected ? <Trans>Disconnect</Trans> : <Trans>Discard the session</Trans>}
      </Button>
      {isAsking && (
        <Confirm
          title={client.connected ? <Trans>Disconnect {client.client_id}?</Trans> : <Trans>Discard the session?</Trans>}
          action={client.connected ? <Trans>Disconnect</Trans> : <Trans>Discard</Trans>}
          call={{
            method: 'DELETE',
            path,
            ctl: `${client.connected ? 'clients' : 'sessions'} delete ${client.client_id}`,
          }}
          isPending={end.isPending}
          error={end.error}
          onClose={() => setAsking(false)}
          onConfirm={() =>
            end.mutate(undefined, {
              onSuccess: () => {
                notifications.show({ message: t`The session of ${client.client_id} has ended.` });
                navigate('/clients');
              },
            })
          }
        >
          <Text size="sm">
            <Trans>
              This ends the session with {formatNumber(client.subscriptions)} subscriptions and{' '}
              {formatNumber(client.queued_messages)} queued messages. The client may connect again.
            </Trans>
          </Text>
        </Confirm>
      )}
    </>
  );
}
