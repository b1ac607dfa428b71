import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { deviceHref, useDeviceColumns } from '../devices/device-columns';
import type { RelayEndpoint } from './endpoint-address';
import { DeviceName } from './device-name';
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

export function EndpointDevices({ endpoint, mayChange }: { endpoint: RelayEndpoint; mayChange: boolean }) {
  const { t } = useLingui();
  const devices = useEndpointDevices(endpoint);
  const shared = useDeviceColumns((device) => device.name);
  const name: Column<Schemas['Device']> = {
    ...shared.name,
    cell: (device) => (mayChange ? <DeviceName device={device} /> : shared.name.cell(device)),
  };
  const columns: Column<Schemas['Device']>[] = [name, shared.id, shared.state, shared.seen];
  return (
    <DataTable
      name="endpoint-devices"
      label={t`Devices`}
      columns={columns}
      rowKey={(device) => device.id}
      rowHref={deviceHref}
      {...pagesOf(devices)}
      empty={
        <EmptyState title={<Trans>No devices yet</Trans>}>
          <Trans>A connection becomes a device when it sends an identify message; the test panel has one.</Trans>
        </EmptyState>
      }
    />
  );
}
