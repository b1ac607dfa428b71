import { useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import type { Column } from '../../ui/data-table';
import { Ago } from '../../ui/time';
import { DeviceStateBadge } from './device-state';

type Device = Schemas['Device'];

export const deviceHref = (device: Device) => `/devices/${encodeURIComponent(device.id)}`;

/** Columns that lists of devices share; `sortByName` is what the column of names is sorted by. */
export function useDeviceColumns(sortByName: (device: Device) => string = (device) => device.name || device.id) {
  const { t } = useLingui();
  return {
    name: {
      id: 'name',
      header: t`Name`,
      sort: sortByName,
      cell: (device) => (
        <Link href={deviceHref(device)} className="link">
          {device.name || device.id}
        </Link>
      ),
    },
    id: {
      id: 'id',
      header: t`Id`,
      sort: (device) => device.id,
      cell: (device) => <span className="mono">{device.id}</span>,
    },
    state: {
      id: 'state',
      header: t`State`,
      sort: (device) => device.state,
      cell: (device) => <DeviceStateBadge state={device.state} />,
    },
    product: {
      id: 'product',
      header: t`Product`,
      sort: (device) => device.product,
      cell: (device) => device.product,
    },
    seen: {
      id: 'seen',
      header: t`Last seen`,
      sort: (device) => device.last_seen_at_ms,
      cell: (device) => <Ago ms={device.last_seen_at_ms} />,
    },
  } satisfies Record<string, Column<Device>>;
}
