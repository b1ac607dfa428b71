import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { DeviceStateBadge } from '../devices/device-state';
import type { RelayEndpoint } from './endpoint-address';
import { productOf } from './endpoint-overview';

const refreshMs = 3_000;

/** The devices whose connections identified themselves at the endpoint. */
export function useEndpointDevices(endpoint: RelayEndpoint) {
  const product = productOf(endpoint);
  const list = useList<Schemas['Device']>('/api/v1/devices', { product }, { every: refreshMs, pageSize: 200 });
  // A product of the endpoint's own may serve other endpoints, too: ids of devices begin with that of theirs.
  const rows = list.rows?.filter((device) => device.id.startsWith(`${endpoint.id}:`));
  return { ...list, rows };
}

export function EndpointDevices({ endpoint }: { endpoint: RelayEndpoint }) {
  const { t } = useLingui();
  const devices = useEndpointDevices(endpoint);
  const href = (device: Schemas['Device']) => `/devices/${encodeURIComponent(device.id)}`;
  const columns: Column<Schemas['Device']>[] = [
    {
      id: 'name',
      header: t`Name`,
      sort: (device) => device.name,
      cell: (device) => (
        <Link href={href(device)} className="link">
          {device.name || device.id}
        </Link>
      ),
    },
    {
      id: 'id',
      header: t`Id`,
      sort: (device) => device.id,
      cell: (device) => <span className="mono">{device.id}</span>,
    },
    {
      id: 'state',
      header: t`State`,
      sort: (device) => device.state,
      cell: (device) => <DeviceStateBadge state={device.state} />,
    },
    {
      id: 'seen',
      header: t`Last seen`,
      sort: (device) => device.last_seen_at_ms,
      cell: (device) => <Ago ms={device.last_seen_at_ms} />,
    },
  ];
  return (
    <DataTable
      name="endpoint-devices"
      label={t`Devices`}
      columns={columns}
      rowKey={(device) => device.id}
      rowHref={href}
      {...pagesOf(devices)}
      empty={
        <EmptyState title={<Trans>No devices yet</Trans>}>
          <Trans>A connection becomes a device when it sends an identify message; the test panel has one.</Trans>
        </EmptyState>
      }
    />
  );
}
