import { Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import { choiceName, namedChoices } from '../../api/choice-names';
import type { Schemas } from '../../api/client';
import { useList, type ConfigurationObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatBytes } from '../../format';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { Facts } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';
import type { FileInfo } from '../files/file-list';
import { useNamespaceNames } from '../relay/endpoint-kind';

type Firmware = Schemas['FirmwarePackage'] & ConfigurationObject;

export const firmwarePath = '/api/v1/firmware';

export function Packages() {
  const { t } = useLingui();
  const caller = useCaller();
  const namespaces = useNamespaceNames();
  const products = useList<{ id: string }>('/api/v1/products');
  const files = useList<FileInfo>('/api/v1/files', { state: 'complete' });
  const kind: ObjectKind = {
    path: firmwarePath,
    command: 'firmware',
    idField: 'id',
    newSchema: 'FirmwarePackageNew',
    inputSchema: 'FirmwarePackageInput',
    newTitle: t`New package`,
    initial: { id: '' },
    deletion: (object) => (
      <Trans>
        This deletes the package {String(object.id)}. Its file stays. It is possible only when it is assigned to
        nothing.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew
        ? [
            { name: 'id', label: t`Id` },
            {
              name: 'file',
              label: t`Image`,
              help: t`A file of this node; upload it on the page of files first.`,
              options: (files.rows ?? []).map((file) => ({
                value: file.id,
                label: `${file.name} (${formatBytes(file.size ?? 0)})`,
              })),
            },
            {
              name: 'product',
              label: t`Product`,
              help: t`Whose devices can install it.`,
              options: (products.rows ?? []).map(({ id }) => id),
            },
            { name: 'title', label: t`Title`, help: t`Devices compare title and version with what they run.` },
            { name: 'firmware_version', label: t`Version`, help: '' },
            {
              name: 'type',
              label: t`Type`,
              help: t`A device has one package of each type.`,
              options: namedChoices('type', ['firmware', 'software']),
            },
            ...(caller.role !== null || caller.namespaces.length > 1
              ? [
                  {
                    name: 'namespace',
                    label: t`Namespace`,
                    help: t`That of the product and the file.`,
                    options: namespaces,
                  },
                ]
              : []),
          ]
        : []),
      {
        name: 'digest_algorithm',
        label: t`Digest`,
        help: t`What devices verify.`,
        options: ['sha256', 'sha384', 'sha512', 'md5', 'crc32', 'murmur3_32', 'murmur3_128'],
      },
      { name: 'signature', label: t`Signature`, help: t`scheme (minisign or x509), value and certificates.` },
      { name: 'notes', label: t`Notes`, help: t`What has changed.`, control: 'textarea' as const },
    ],
  };
  const columns: Column<Firmware>[] = [
    { id: 'title', header: t`Title`, sort: (row) => row.title, cell: (row) => row.title },
    {
      id: 'firmware_version',
      header: t`Version`,
      sort: (row) => row.firmware_version,
      cell: (row) => row.firmware_version,
    },
    {
      id: 'product',
      header: t`Product`,
      sort: (row) => row.product,
      cell: (row) => (
        <Link href={`/products/${encodeURIComponent(row.product)}`} className="link">
          {row.product}
        </Link>
      ),
    },
    { id: 'type', header: t`Type`, sort: (row) => row.type, cell: (row) => choiceName('type', row.type ?? 'firmware') },
    {
      id: 'size',
      header: t`Size`,
      align: 'right',
      sort: (row) => row.size,
      cell: (row) => formatBytes(row.size ?? 0),
    },
    {
      id: 'signed',
      header: t`Signature`,
      cell: (row) =>
        row.signed_by ? (
          <StateBadge health="good">
            <Trans>signed</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="unknown">
            <Trans>not signed</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <ObjectList<Firmware>
      kind={kind}
      label={t`Packages`}
      columns={columns}
      mayChange={mayInNamespace(caller, 'operator')}
      isNamespaced
      details={(object) => <Details firmware={object as Firmware} />}
      empty={{
        title: <Trans>No packages yet</Trans>,
        text: <Trans>Upload an image on the page of files, then create a package with its version.</Trans>,
      }}
    />
  );
}

function Details({ firmware }: { firmware: Firmware }) {
  return (
    <Facts
      rows={[
        [<Trans>Title</Trans>, firmware.title],
        [<Trans>Version</Trans>, firmware.firmware_version],
        [<Trans>Product</Trans>, firmware.product],
        [
          <Trans>Image</Trans>,
          <Link href={`/files?file=${encodeURIComponent(firmware.file)}`} className="link mono">
            {firmware.file}
          </Link>,
        ],
        [<Trans>Size</Trans>, formatBytes(firmware.size ?? 0)],
        [<Trans>SHA-256</Trans>, <span className="mono">{firmware.sha256 ?? '–'}</span>],
        [
          <Trans>Signed by</Trans>,
          firmware.signed_by ?? (
            <Text span c="dimmed">
              –
            </Text>
          ),
        ],
      ]}
    />
  );
}
