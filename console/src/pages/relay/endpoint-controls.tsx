import { Select, Stack } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { ControlPanel } from '../devices/control-panel';
import type { RelayEndpoint } from './endpoint-address';
import { useEndpointDevices } from './endpoint-devices';

/** Controls of one of the endpoint's devices. */
export function EndpointControls({ endpoint, mayChange }: { endpoint: RelayEndpoint; mayChange: boolean }) {
  const { t } = useLingui();
  const [chosen, setChosen] = useUrlState('device');
  const devices = useEndpointDevices(endpoint);
  if (devices.error && !devices.rows) return <ErrorState error={devices.error} />;
  if (!devices.rows) return <Loading />;
  const device = devices.rows.find(({ id }) => id === chosen) ?? devices.rows[0];
  if (!device) {
    return (
      <div className="panel">
        <EmptyState title={<Trans>No devices to control yet</Trans>}>
          <Trans>Controls send commands to a device. A connection becomes one when it sends an identify message.</Trans>
        </EmptyState>
      </div>
    );
  }
  return (
    <Stack gap="md">
      <Select
        label={t`Device`}
        w={320}
        maw="100%"
        searchable
        allowDeselect={false}
        value={device.id}
        onChange={(id) => setChosen(id ?? '')}
        data={devices.rows.map(({ id, name, state }) => ({
          value: id,
          label: `${name || id}${state === 'online' ? ' ●' : ''}`,
        }))}
      />
      <ControlPanel key={device.id} device={device.id} mayChange={mayChange} />
    </Stack>
  );
}
