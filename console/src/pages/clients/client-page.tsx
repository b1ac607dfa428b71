import { ActionIcon, Button, NumberInput, Text, TextInput, Tooltip } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlugConnectedX, IconPlus, IconRoute, IconX } from '@tabler/icons-react';
import { useEffect, useRef, useState, type FormEvent, type ReactNode } from 'react';
import { Link, useLocation, useParams } from 'wouter';
import { api, unwrap, useChange, usePages, useRead, type Schemas } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatCompact, formatDuration, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { Copy } from '../../ui/copy';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { quoted, ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago, Since } from '../../ui/time';
import { filterProblem } from '../live/topics';

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
            ctl={`sessions show ${quoted(clientId)}`}
          />
          <Button
            component={Link}
            href={withQuery('/live', { tab: 'trace', client: clientId })}
            variant="default"
            leftSection={<IconRoute size={14} />}
          >
            <Trans>Trace messages</Trans>
          </Button>
          <EndSession client={data} />
        </>
      }
    >
      <PageTabs
        tabs={[
          {
            id: 'overview',
            label: <Trans>Overview</Trans>,
            content: <Overview client={data} atMs={client.dataUpdatedAt} />,
          },
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
            content: <Queue clientId={clientId} queued={data.queued_messages} />,
          },
        ]}
      />
    </Page>
  );
}

interface Rates {
  received: number | null;
  sent: number | null;
}

/** Messages per second between the last two answers of the node; `null` before the second one. */
function useRates(client: Client, atMs: number): Rates {
  const [rates, setRates] = useState<Rates>({ received: null, sent: null });
  const last = useRef<{ client: Client; atMs: number }>(undefined);
  useEffect(() => {
    const before = last.current;
    last.current = { client, atMs };
    if (before === undefined || atMs <= before.atMs) return;
    // The counters begin again with a new session.
    const perS = (count: (of: Client) => number) =>
      (Math.max(0, count(client) - count(before.client)) * 1000) / (atMs - before.atMs);
    setRates({ received: perS((of) => of.messages_received), sent: perS((of) => of.messages_sent) });
  }, [client, atMs]);
  return rates;
}

function Count({ total, perS }: { total: number; perS: number | null }) {
  return (
    <>
      {formatNumber(total)}{' '}
      {perS !== null && (
        <span className="dimmed">
          <Trans>({formatCompact(perS)} per second)</Trans>
        </span>
      )}
    </>
  );
}

/** Why the last connection ended, see `$events/client/disconnected`. */
function DisconnectReason({ reason }: { reason: string }) {
  switch (reason) {
    case 'normal':
      return <Trans>the client disconnected</Trans>;
    case 'closed_by_client':
      return <Trans>the client closed the connection without DISCONNECT</Trans>;
    case 'keep_alive_timeout':
      return <Trans>nothing arrived within the keep-alive</Trans>;
    case 'socket_error':
      return <Trans>the network connection failed</Trans>;
    case 'kicked':
      return <Trans>disconnected by an operator</Trans>;
    case 'server_shutting_down':
      return <Trans>the node was stopped</Trans>;
    case 'not_authorized':
      return <Trans>not permitted</Trans>;
    case 'protocol_error':
      return <Trans>the client violated the protocol</Trans>;
    case 'taken_over':
      return <Trans>the client connected again elsewhere</Trans>;
    case 'discarded':
      return <Trans>the client connected again with a new session</Trans>;
    case 'credentials_expired':
      return <Trans>its credentials expired</Trans>;
    case 'queue_full':
      return <Trans>too many messages were waiting for it</Trans>;
    case 'slow_receiver':
      return <Trans>it received too slowly</Trans>;
    case 'quota_exceeded':
      return <Trans>it exceeded a quota</Trans>;
    case 'packet_timeout':
      return <Trans>a packet did not arrive completely in time</Trans>;
    case 'connect_timeout':
      return <Trans>CONNECT did not arrive in time</Trans>;
    case 'store_full':
      return <Trans>the storage of the node was full</Trans>;
    case 'store_failed':
      return <Trans>the node could not store a message</Trans>;
    case 'rejected':
      return <Trans>the node rejected the connection</Trans>;
    case 'closed_by_server':
      return <Trans>the node closed the connection</Trans>;
    case 'closed_by_other_node':
      return <Trans>another node of the cluster closed the connection</Trans>;
    default:
      return <span className="mono">{reason}</span>;
  }
}

function Overview({ client, atMs }: { client: Client; atMs: number }) {
  const rates = useRates(client, atMs);
  const none = <span className="dimmed">–</span>;
  return (
    <div className="grid">
      <Panel title={<Trans>Connection</Trans>}>
        <Facts
          rows={[
            client.connected
              ? [<Trans>Connected for</Trans>, client.connected_at_ms ? <Since ms={client.connected_at_ms} /> : none]
              : [<Trans>Disconnected</Trans>, <Ago ms={client.disconnected_at_ms} />],
            ...(client.connected
              ? []
              : [
                  [
                    <Trans>Reason</Trans>,
                    client.disconnect_reason ? <DisconnectReason reason={client.disconnect_reason} /> : none,
                  ] as [ReactNode, ReactNode],
                ]),
            [<Trans>Address</Trans>, <span className="mono">{client.peer_address ?? '–'}</span>],
            [<Trans>Listener</Trans>, client.listener ?? none],
            [<Trans>MQTT</Trans>, client.protocol_version],
            [<Trans>User</Trans>, client.username ?? none],
            [
              <Trans>Device</Trans>,
              client.device === null ? (
                none
              ) : (
                <Link href={`/devices/${encodeURIComponent(client.device)}`} className="link">
                  {client.device}
                </Link>
              ),
            ],
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
            ...(client.node === null ? [] : [[<Trans>Node</Trans>, client.node] as [ReactNode, ReactNode]]),
            [<Trans>Shard</Trans>, client.shard],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Messages</Trans>}>
        <Facts
          rows={[
            [<Trans>Received from the client</Trans>, <Count total={client.messages_received} perS={rates.received} />],
            [<Trans>Sent to the client</Trans>, <Count total={client.messages_sent} perS={rates.sent} />],
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

/** Subscribes on behalf of the client. */
function Subscribe({ clientId, error }: { clientId: string; error: Error | null }) {
  const { t } = useLingui();
  const [filter, setFilter] = useState('');
  const [qos, setQos] = useState(1);
  const path = `/api/v1/sessions/${encodeURIComponent(clientId)}/subscriptions`;
  const body = { topic_filter: filter.trim(), qos };
  const subscribe = useChange(() => send('POST', path, { body }), [['clients']]);
  const problem = body.topic_filter === '' ? null : filterProblem(body.topic_filter);
  const failure = subscribe.error ?? error;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (body.topic_filter === '' || problem !== null) return;
    subscribe.mutate(undefined, { onSuccess: () => setFilter('') });
  };
  return (
    <form className="row wrap" onSubmit={submit}>
      <TextInput
        aria-label={t`Topic filter`}
        placeholder={t`Topic filter, such as plant/#`}
        classNames={{ input: 'mono' }}
        w={260}
        value={filter}
        error={problem ? t`not a topic filter` : false}
        onChange={(event) => setFilter(event.currentTarget.value)}
      />
      <NumberInput
        aria-label={t`QoS`}
        prefix="QoS "
        w={92}
        min={0}
        max={2}
        clampBehavior="strict"
        allowDecimal={false}
        value={qos}
        onChange={(value) => setQos(Number(value) || 0)}
      />
      <Button
        type="submit"
        size="sm"
        variant="default"
        leftSection={<IconPlus size={14} />}
        disabled={body.topic_filter === '' || problem !== null}
        loading={subscribe.isPending}
      >
        <Trans>Subscribe for the client</Trans>
      </Button>
      <ShowCall
        method="POST"
        path={path}
        body={body}
        ctl={`subscriptions add ${quoted(clientId)} ${quoted(body.topic_filter || 'FILTER')} --qos ${qos}`}
      />
      {failure && (
        <Text size="sm" c="var(--tg-critical)" role="alert">
          {failure.message}
        </Text>
      )}
    </form>
  );
}

function Subscriptions({ clientId }: { clientId: string }) {
  const { t } = useLingui();
  const mayChange = mayOnNode(useCaller(), 'operator');
  const unsubscribe = useChange(
    (topic_filter: string) =>
      unwrap(
        api.DELETE('/api/v1/sessions/{client_id}/subscriptions/{topic_filter}', {
          params: { path: { client_id: clientId, topic_filter } },
        }),
      ),
    [['clients']],
  );
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
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            align: 'right' as const,
            cell: ({ topic_filter }: Schemas['SubscriptionInfo']) => (
              <Tooltip label={t`Unsubscribe`}>
                <ActionIcon
                  size="sm"
                  aria-label={t`Unsubscribe ${topic_filter}`}
                  loading={unsubscribe.isPending && unsubscribe.variables === topic_filter}
                  onClick={() => unsubscribe.mutate(topic_filter)}
                >
                  <IconX size={14} />
                </ActionIcon>
              </Tooltip>
            ),
          },
        ]
      : []),
  ];
  return (
    <DataTable
      name="client-subscriptions"
      toolbar={mayChange && <Subscribe clientId={clientId} error={unsubscribe.error} />}
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

function Queue({ clientId, queued }: { clientId: string; queued: number }) {
  const { t } = useLingui();
  const mayChange = mayOnNode(useCaller(), 'operator');
  const [isClearing, setClearing] = useState(false);
  const list = usePages<Schemas['QueuedMessageView']>(
    ['clients', 'queue', clientId],
    (after, signal) =>
      unwrap(
        api.GET('/api/v1/sessions/{client_id}/queue', {
          params: { path: { client_id: clientId }, query: { after } },
          signal,
        }),
      ),
    { every: refreshMs * 2 },
  );
  const path = `/api/v1/sessions/${encodeURIComponent(clientId)}/queue`;
  const remove = useChange((position: number) => send<null>('DELETE', `${path}/${position}`), [['clients']]);
  const clear = useChange(() => send('DELETE', path), [['clients']]);
  const columns: Column<Schemas['QueuedMessageView']>[] = [
    { id: 'topic', header: t`Topic`, cell: (row) => <span className="mono">{row.message.topic}</span> },
    { id: 'qos', header: t`QoS`, cell: (row) => row.message.qos },
    {
      id: 'state',
      header: t`State`,
      cell: (row) => (row.packet_id === null ? <Trans>waits</Trans> : <Trans>in flight</Trans>),
    },
    {
      id: 'payload',
      header: t`Payload`,
      cell: (row) => <span className="mono">{String(row.message.payload ?? '')}</span>,
    },
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            align: 'right' as const,
            cell: (row: Schemas['QueuedMessageView']) =>
              row.packet_id === null && (
                <Tooltip label={t`Delete`}>
                  <ActionIcon
                    size="sm"
                    aria-label={t`Delete the message ${row.position}`}
                    onClick={() => remove.mutate(row.position)}
                  >
                    <IconX size={14} />
                  </ActionIcon>
                </Tooltip>
              ),
          },
        ]
      : []),
  ];
  return (
    <>
      <DataTable
        name="client-queue"
        label={t`Queued messages`}
        columns={columns}
        rowKey={(row) => String(row.position)}
        {...pagesOf(list)}
        toolbar={
          <>
            {remove.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {remove.error.message}
              </Text>
            )}
            <div className="row wrap table-actions">
              <ShowCall method="GET" path={path} ctl={`sessions queue ${quoted(clientId)}`} />
              {mayChange && queued > 0 && (
                <Button variant="default" onClick={() => setClearing(true)}>
                  <Trans>Clear the queue</Trans>
                </Button>
              )}
            </div>
          </>
        }
        empty={
          <EmptyState title={<Trans>Nothing is queued</Trans>}>
            <Trans>Messages wait here while the client is away or slow.</Trans>
          </EmptyState>
        }
      />
      {isClearing && (
        <Confirm
          title={<Trans>Clear the queue of {clientId}?</Trans>}
          action={<Trans>Clear the queue</Trans>}
          call={{ method: 'DELETE', path, ctl: `sessions clear-queue ${quoted(clientId)}` }}
          isPending={clear.isPending}
          error={clear.error}
          onClose={() => setClearing(false)}
          onConfirm={() => clear.mutate(undefined, { onSuccess: () => setClearing(false) })}
        >
          <Text size="sm">
            <Trans>
              This deletes {formatNumber(queued)} messages that wait for the client. Messages that were sent and not
              acknowledged stay.
            </Trans>
          </Text>
        </Confirm>
      )}
    </>
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
            ctl: client.connected
              ? `clients disconnect ${quoted(client.client_id)}`
              : `sessions discard ${quoted(client.client_id)}`,
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
