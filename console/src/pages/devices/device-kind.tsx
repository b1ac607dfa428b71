import { Trans, useLingui } from '@lingui/react/macro';
import { useList } from '../../api/objects';
import type { ObjectKind } from '../../ui/object-editor';

/** The fields of a device that operators write. */
export function useDeviceKind(): ObjectKind {
  const { t } = useLingui();
  const products = useList<{ id: string }>('/api/v1/products');
  return {
    path: '/api/v1/devices',
    command: 'devices',
    idField: 'id',
    newSchema: 'NewDevice',
    inputSchema: 'NewDevice',
    newTitle: t`Add a device`,
    // Summaries of credentials are no credentials; without them the device keeps its own.
    toBody: ({ credentials: _, ...body }) => body,
    deletion: (object) => (
      <Trans>
        This deletes the device {String(object.id)} with its credentials, attributes, telemetry, commands and alarms.
        Its connection ends.
      </Trans>
    ),
    fields: () => [
      { name: 'name', label: t`Name`, help: '' },
      {
        name: 'product',
        label: t`Product`,
        help: t`Another product of the same namespace has another thing model and other alarm rules.`,
        options: (products.rows ?? []).map(({ id }) => id),
      },
      { name: 'group', label: t`Group`, help: t`A field that device groups can select by.` },
      { name: 'parent', label: t`Gateway`, help: t`Id of the gateway in front of the device.` },
      { name: 'gateway', label: t`Is a gateway`, help: t`May have child devices.` },
      { name: 'tags', label: t`Tags`, help: '' },
      { name: 'enabled', label: t`May connect`, help: t`Disabling disconnects the device.` },
    ],
  };
}
