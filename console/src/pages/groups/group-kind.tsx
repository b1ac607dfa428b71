import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { useList, type ConfigurationObject } from '../../api/objects';
import { useCaller } from '../../api/session';
import type { ObjectKind } from '../../ui/object-editor';
import { useNamespaceNames } from '../relay/endpoint-kind';

export const groupsPath = '/api/v1/device-groups';
export const groupHref = (id: string) => `/groups/${encodeURIComponent(id)}`;

export type Group = Schemas['DeviceGroup'] & ConfigurationObject;

export function useGroupKind(): ObjectKind {
  const { t } = useLingui();
  const caller = useCaller();
  const namespaces = useNamespaceNames();
  const products = useList<{ id: string }>('/api/v1/products');
  return {
    path: groupsPath,
    command: 'device-groups',
    idField: 'id',
    newSchema: 'DeviceGroupNew',
    inputSchema: 'DeviceGroupInput',
    newTitle: t`New group`,
    initial: { id: '' },
    deletion: (object) => <Trans>This deletes the group {String(object.id)}. Its devices stay.</Trans>,
    fields: (isNew) => [
      ...(isNew ? [{ name: 'id', label: t`Id` }] : []),
      { name: 'name', label: t`Name`, help: '' },
      { name: 'description', label: t`Description`, help: '' },
      ...(isNew && (caller.role !== null || caller.namespaces.length > 1)
        ? [{ name: 'namespace', label: t`Namespace`, help: t`Who owns the group.`, options: namespaces }]
        : []),
      {
        name: 'product',
        label: t`Product`,
        help: t`All devices of the product that also match the group and tags below.`,
        options: (products.rows ?? []).map(({ id }) => id),
      },
      { name: 'group', label: t`Field "group" of the devices`, help: '' },
      { name: 'tags', label: t`Tags of the devices`, help: t`Devices must have all of them.` },
      { name: 'devices', label: t`Devices`, help: t`Ids of further devices that belong to the group in any case.` },
    ],
  };
}

/** What selects the devices of a group, in one line. */
export function criteriaOf(group: Schemas['DeviceGroup']): string {
  const count = group.devices?.length ?? 0;
  return [
    group.product && `product=${group.product}`,
    group.group && `group=${group.group}`,
    ...Object.entries(group.tags ?? {}).map(([name, value]) => `${name}=${value}`),
    count > 0 && `+${count}`,
  ]
    .filter(Boolean)
    .join(', ');
}
