import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList, type ConfigurationObject, type Fields } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { Ago } from '../../ui/time';
import { firmwarePath } from './packages';

type Assignment = Schemas['FirmwareAssignment'] & ConfigurationObject;

const targets = ['product', 'group', 'device'] as const;

/** The kind of target that the form shows; a new assignment without one is for a product. */
function targetOf(values: Fields): string {
  return typeof values.to === 'string' ? values.to : (targets.find((name) => values[name] != null) ?? 'product');
}

/** Which package the devices of a product, of a group, or one device install. */
export function Assignments() {
  const { t } = useLingui();
  const caller = useCaller();
  const packages = useList<Schemas['FirmwarePackage']>(firmwarePath);
  const products = useList<{ id: string }>('/api/v1/products');
  const groups = useList<{ id: string }>('/api/v1/device-groups');
  const kind: ObjectKind = {
    path: '/api/v1/firmware-assignments',
    command: 'firmware-assignments',
    idField: 'id',
    newSchema: 'FirmwareAssignmentNew',
    inputSchema: 'FirmwareAssignmentInput',
    newTitle: t`New assignment`,
    initial: { id: '' },
    toBody: (values) => {
      const chosen = targetOf(values);
      return Object.fromEntries(
        Object.entries(values).filter(
          ([name]) => name !== 'to' && (name === chosen || !targets.some((target) => target === name)),
        ),
      );
    },
    deletion: (object) => (
      <Trans>
        This deletes the assignment {String(object.id)} of the package {String(object.package)}. Devices keep what they
        have installed.
      </Trans>
    ),
    pseudoFields: ['to'],
    fields: (isNew) => [
      ...(isNew ? [{ name: 'id', label: t`Id` }] : []),
      {
        name: 'package',
        label: t`Package`,
        help: '',
        options: (packages.rows ?? []).map(({ id, title }) => ({ value: id, label: `${id} (${title})` })),
      },
      {
        name: 'to',
        label: t`Assigned to`,
        help: t`The assignment of a device overrides that of its groups, and these that of its product.`,
        control: 'select' as const,
        options: [
          { value: 'product', label: t`all devices of a product` },
          { value: 'group', label: t`a device group` },
          { value: 'device', label: t`one device` },
        ],
        initially: 'product',
      },
      {
        name: 'product',
        label: t`Product`,
        help: '',
        options: (products.rows ?? []).map(({ id }) => id),
        isShown: (values) => targetOf(values) === 'product',
      },
      {
        name: 'group',
        label: t`Group`,
        help: '',
        options: (groups.rows ?? []).map(({ id }) => id),
        isShown: (values) => targetOf(values) === 'group',
      },
      { name: 'device', label: t`Device id`, help: '', isShown: (values) => targetOf(values) === 'device' },
    ],
  };
  const columns: Column<Assignment>[] = [
    {
      id: 'package',
      header: t`Package`,
      sort: (row) => row.package,
      cell: (row) => (
        <Link href={`/firmware?edit=${encodeURIComponent(row.package)}`} className="link">
          {row.package}
        </Link>
      ),
    },
    {
      id: 'target',
      header: t`Assigned to`,
      cell: (row) =>
        row.device ? (
          <Link href={`/devices/${encodeURIComponent(row.device)}`} className="link">
            <Trans>device {row.device}</Trans>
          </Link>
        ) : row.group ? (
          <Link href={`/groups/${encodeURIComponent(row.group)}`} className="link">
            <Trans>group {row.group}</Trans>
          </Link>
        ) : (
          <Link href={`/products/${encodeURIComponent(row.product ?? '')}`} className="link">
            <Trans>product {row.product}</Trans>
          </Link>
        ),
    },
    {
      id: 'changed',
      header: t`Changed`,
      sort: (row) => row.updated_at_ms,
      cell: (row) => <Ago ms={row.updated_at_ms} />,
    },
  ];
  return (
    <ObjectList<Assignment>
      kind={kind}
      label={t`Assignments`}
      columns={columns}
      mayChange={mayInNamespace(caller, 'operator')}
      isNamespaced
      empty={{
        title: <Trans>Nothing is assigned yet</Trans>,
        text: <Trans>An assignment tells which package the devices of a product or a group install.</Trans>,
      }}
    />
  );
}
