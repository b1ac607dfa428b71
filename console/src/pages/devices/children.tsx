import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { deviceHref, useDeviceColumns } from './device-columns';

/** Devices behind a gateway. */
export function DeviceChildren({ device }: { device: string }) {
  const { t } = useLingui();
  const list = useList<Schemas['Device']>('/api/v1/devices', { parent: device }, { every: 5_000, pageSize: 200 });
  const shared = useDeviceColumns();
  const columns: Column<Schemas['Device']>[] = [shared.name, shared.id, shared.state, shared.product, shared.seen];
  return (
    <DataTable
      name="device-children"
      label={t`Child devices`}
      columns={columns}
      rowKey={(child) => child.id}
      rowHref={deviceHref}
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
