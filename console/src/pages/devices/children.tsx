import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { DeviceStateBadge } from './device-state';

/** Devices behind a gateway. */
export function DeviceChildren({ device }: { device: string }) {
  const { t } = useLingui();
  const list = useList<Schemas['Device']>('/api/v1/devices', { parent: device }, { every: 5_000, pageSize: 200 });
  const href = (child: Schemas['Device']) => `/devices/${encodeURIComponent(child.id)}`;
  const columns: Column<Schemas['Device']>[] = [
    {
      id: 'name',
      header: t`Name`,
      sort: (child) => child.name || child.id,
      cell: (child) => (
        <Link href={href(child)} className="link">
          {child.name || child.id}
        </Link>
      ),
    },
    { id: 'id', header: t`Id`, sort: (child) => child.id, cell: (child) => <span className="mono">{child.id}</span> },
    {
      id: 'state',
      header: t`State`,
      sort: (child) => child.state,
      cell: (child) => <DeviceStateBadge state={child.state} />,
    },
    { id: 'product', header: t`Product`, sort: (child) => child.product, cell: (child) => child.product },
    {
      id: 'seen',
      header: t`Last seen`,
      sort: (child) => child.last_seen_at_ms,
      cell: (child) => <Ago ms={child.last_seen_at_ms} />,
    },
  ];
  return (
    <DataTable
      name="device-children"
      label={t`Child devices`}
      columns={columns}
      rowKey={(child) => child.id}
      rowHref={href}
      {...pagesOf(list)}
      empty={
        <EmptyState title={<Trans>No child devices</Trans>}>
          <Trans>
            A gateway registers its child devices when it reports data of them, or add them with this gateway.
          </Trans>
        </EmptyState>
      }
    />
  );
}
