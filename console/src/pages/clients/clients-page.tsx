import { Trans, useLingui } from '@lingui/react/macro';
import { useCallback } from 'react';
import { Link } from 'wouter';
import { api, unwrap, usePages, type Schemas } from '../../api/client';
import { formatBytes, formatNumber } from '../../format';
import type { paths } from '../../api/schema';
import { DataTable, pagesOf, useNodeOrder, type Column, type NodeOrder } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { SearchToolbar, useSearch } from '../../ui/search-toolbar';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { clientHref } from './client-href';
import { RejectedConnections } from './rejected-connections';

type Client = Schemas['ClientInfo'];

type Sort = NonNullable<NonNullable<paths['/api/v1/sessions']['get']['parameters']['query']>['sort']>;

const nodeOrder: NodeOrder = {
  client: 'client_id',
  node: 'node',
  state: 'connected',
  since: 'connected_at_ms',
  user: 'username',
  address: 'peer_address',
  listener: 'listener',
  protocol: 'protocol_version',
  subscriptions: 'subscriptions',
  queued: 'queued_messages',
  'queued-bytes': 'queued_bytes',
  received: 'messages_received',
  sent: 'messages_sent',
  dropped: 'messages_dropped',
};

const pageSize = 200;
const refreshMs = 5_000;

/** Who is connected, and who could not connect. */
export default function ClientsPage() {
  const { t } = useLingui();
  return (
    <Page title={t`Clients`} description={t`MQTT connections, and sessions of clients that are not connected.`}>
      <PageTabs
        tabs={[
          { id: 'clients', label: <Trans>Clients</Trans>, content: <ClientList /> },
          { id: 'rejected', label: <Trans>Rejected connections</Trans>, content: <RejectedConnections /> },
        ]}
      />
    </Page>
  );
}

function ClientList() {
  const { t } = useLingui();
  const [state, setState] = useUrlState('state', 'all');
  const search = useSearch();
  const { wanted } = search;
  const sort = useNodeOrder(nodeOrder);
  const read = useCallback(
    (after: string | undefined, signal: AbortSignal) =>
      unwrap(
        api.GET('/api/v1/sessions', {
          params: {
            query: {
              after,
              limit: pageSize,
              ...(sort ? { sort: sort as Sort } : {}),
              ...(wanted ? { client_id_contains: wanted } : {}),
              ...(state === 'all' ? {} : { connected: state === 'connected' }),
            },
          },
          signal,
        }),
      ),
    [sort, state, wanted],
  );
  const clients = usePages<Client>(['clients', state, wanted, sort], read, { every: refreshMs });

  const isCluster = clients.rows?.some((client) => client.node !== null) ?? false;

  const columns: Column<Client>[] = [
    {
      id: 'client',
      header: t`Client id`,
      sort: (client) => client.client_id,
      cell: (client) => (
        <Link href={clientHref(client.client_id)} className="link mono">
          {client.client_id}
        </Link>
      ),
    },
    ...(isCluster
      ? [{ id: 'node', header: t`Node`, sort: (client: Client) => client.node, cell: (client: Client) => client.node }]
      : []),
    {
      id: 'state',
      header: t`State`,
      sort: (client) => (client.connected ? 0 : 1),
      cell: (client) =>
        client.connected ? (
          <StateBadge health="good">
            <Trans>connected</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="unknown">
            <Trans>not connected</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'since',
      header: t`Since`,
      sort: (client) => (client.connected ? client.connected_at_ms : client.disconnected_at_ms),
      cell: (client) => <Ago ms={client.connected ? client.connected_at_ms : client.disconnected_at_ms} />,
    },
    {
      id: 'user',
      header: t`User`,
      sort: (client) => client.username,
      cell: (client) => client.username ?? <span className="dimmed">–</span>,
    },
    { id: 'address', header: t`Address`, cell: (client) => <span className="mono">{client.peer_address ?? '–'}</span> },
    { id: 'listener', header: t`Listener`, cell: (client) => client.listener ?? '–', isHidden: true },
    { id: 'protocol', header: t`MQTT`, cell: (client) => client.protocol_version, isHidden: true },
    {
      id: 'subscriptions',
      header: t`Subscriptions`,
      align: 'right',
      isHidden: true,
      cell: (client) => formatNumber(client.subscriptions),
    },
    {
      id: 'queued',
      header: t`Queued`,
      align: 'right',
      sort: (client) => client.queued_messages,
      cell: (client) => (client.queued_messages > 0 ? formatNumber(client.queued_messages) : '–'),
    },
    {
      id: 'queued-bytes',
      header: t`Queued bytes`,
      align: 'right',
      isHidden: true,
      cell: (client) => formatBytes(client.queued_bytes),
    },
    {
      id: 'received',
      header: t`Received`,
      align: 'right',
      sort: (client) => client.messages_received,
      cell: (client) => formatNumber(client.messages_received),
    },
    {
      id: 'sent',
      header: t`Sent`,
      align: 'right',
      sort: (client) => client.messages_sent,
      cell: (client) => formatNumber(client.messages_sent),
    },
    {
      id: 'dropped',
      header: t`Dropped`,
      align: 'right',
      sort: (client) => client.messages_dropped,
      cell: (client) =>
        client.messages_dropped > 0 ? (
          <span className="state-warning">{formatNumber(client.messages_dropped)}</span>
        ) : (
          '–'
        ),
    },
  ];

  return (
    <DataTable
      name="clients"
      label={t`Clients`}
      columns={columns}
      nodeOrder={nodeOrder}
      rowKey={(client) => `${client.client_id} ${client.node ?? ''}`}
      rowHref={(client) => clientHref(client.client_id)}
      {...pagesOf(clients)}
      toolbar={
        <SearchToolbar
          label={t`Part of a client id`}
          search={search}
          state={state}
          setState={setState}
          states={[
            { value: 'all', label: t`All` },
            { value: 'connected', label: t`Connected` },
            { value: 'disconnected', label: t`Not connected` },
          ]}
        />
      }
      empty={
        wanted || state !== 'all' ? (
          <EmptyState title={<Trans>No client matches</Trans>}>
            <Trans>Change the search or the filter.</Trans>
          </EmptyState>
        ) : (
          <EmptyState title={<Trans>No clients yet</Trans>}>
            <Trans>Clients appear here as soon as they connect.</Trans>
          </EmptyState>
        )
      }
    />
  );
}
