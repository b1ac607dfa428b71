import { Trans, useLingui } from '@lingui/react/macro';
import { useLocation } from 'wouter';
import { useList } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatCompact, formatNumber } from '../../format';
import { Copy } from '../../ui/copy';
import { pagesOf, type Column } from '../../ui/data-table';
import { MissingNodes } from '../../ui/missing-nodes';
import { ObjectList } from '../../ui/object-list';
import { Page } from '../../ui/page';
import { Ago } from '../../ui/time';
import { endpointHref, useRelayBase, type EndpointStatus, type RelayEndpoint } from './endpoint-address';
import { useEndpointKind } from './endpoint-kind';
import { EndpointState, ModeName } from './endpoint-state';

const refreshMs = 3_000;

export default function RelayPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const kind = useEndpointKind();
  const base = useRelayBase();
  const status = useList<EndpointStatus>('/api/v1/endpoint-status', {}, { every: refreshMs });
  const statusOf = new Map(status.rows?.map((each) => [each.id, each]));
  const columns: Column<RelayEndpoint>[] = [
    { id: 'name', header: t`Name`, sort: (row) => row.name, cell: (row) => row.name || '–' },
    {
      id: 'state',
      header: t`State`,
      cell: (row) => <EndpointState endpoint={row} status={statusOf.get(row.id)} />,
    },
    {
      id: 'address',
      header: t`Address`,
      cell: (row) =>
        base ? (
          <span className="row">
            <span className="mono">{base + row.id}</span>
            <Copy value={base + row.id} label={t`Copy the address`} />
          </span>
        ) : (
          '–'
        ),
    },
    {
      id: 'mode',
      header: t`Mode`,
      sort: (row) => row.mode,
      cell: (row) => <ModeName mode={row.mode} />,
      isHidden: true,
    },
    {
      id: 'connections',
      header: t`Connections`,
      align: 'right',
      sort: (row) => statusOf.get(row.id)?.current_connections,
      cell: (row) => formatNumber(statusOf.get(row.id)?.current_connections ?? 0),
    },
    {
      id: 'rate',
      header: t`Messages per minute`,
      align: 'right',
      sort: (row) => statusOf.get(row.id)?.messages_per_minute,
      cell: (row) => formatCompact(statusOf.get(row.id)?.messages_per_minute ?? 0),
    },
    {
      id: 'active',
      header: t`Last active`,
      sort: (row) => statusOf.get(row.id)?.last_active_at_ms,
      cell: (row) => <Ago ms={statusOf.get(row.id)?.last_active_at_ms} />,
    },
    { id: 'namespace', header: t`Namespace`, cell: (row) => row.namespace ?? 'default', isHidden: true },
  ];
  return (
    <Page
      title={t`Relay`}
      description={
        <Trans>
          An endpoint connects devices, programs and web pages by WebSocket: what one sends reaches all others.
        </Trans>
      }
    >
      <ObjectList<RelayEndpoint>
        kind={kind}
        label={t`Relay endpoints`}
        columns={columns}
        mayChange={mayInNamespace(caller, 'operator')}
        isNamespaced
        filters={<MissingNodes nodes={pagesOf(status).missingNodes} />}
        rowHref={(row) => endpointHref(row.id)}
        onCreated={(object) => navigate(endpointHref(String(object.id)))}
        empty={{
          title: <Trans>No endpoints yet</Trans>,
          text: <Trans>Create one, and connect to its address with any WebSocket client.</Trans>,
        }}
      />
    </Page>
  );
}
