import { Trans, useLingui } from '@lingui/react/macro';
import { useLocation } from 'wouter';
import { useRead, type Schemas } from '../../api/client';
import { send } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import type { Column } from '../../ui/data-table';
import { ObjectList } from '../../ui/object-list';
import { Page } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';
import { productHref, useProductKind } from './product-kind';
import { modelOf } from './thing-model';

type Product = Schemas['Product'];

export default function ProductsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const kind = useProductKind();
  const counts = useRead(
    ['device-counts'],
    (signal) => send<Schemas['DeviceCounts']>('GET', '/api/v1/device-counts', { signal }),
    { every: 10_000, enabled: caller.role !== null },
  );
  const devicesOf = (row: Product) => counts.data?.products[row.id] ?? 0;
  const columns: Column<Product>[] = [
    { id: 'name', header: t`Name`, sort: (row) => row.name, cell: (row) => row.name || '–' },
    ...(caller.role === null
      ? []
      : [
          {
            id: 'devices',
            header: t`Devices`,
            align: 'right' as const,
            sort: devicesOf,
            cell: (row: Product) => formatNumber(devicesOf(row)),
          },
        ]),
    {
      id: 'model',
      header: t`Properties`,
      align: 'right',
      sort: (row) => modelOf(row.model).properties?.length ?? 0,
      cell: (row) => formatNumber(modelOf(row.model).properties?.length ?? 0),
    },
    {
      id: 'functions',
      header: t`Functions`,
      align: 'right',
      sort: (row) => modelOf(row.model).functions?.length ?? 0,
      cell: (row) => formatNumber(modelOf(row.model).functions?.length ?? 0),
    },
    {
      id: 'alarms',
      header: t`Alarm rules`,
      align: 'right',
      sort: (row) => row.alarms?.length ?? 0,
      cell: (row) => formatNumber(row.alarms?.length ?? 0),
    },
    {
      id: 'enabled',
      header: t`State`,
      cell: (row) =>
        row.enabled === false ? (
          <StateBadge health="warning">
            <Trans>disabled</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="good">
            <Trans>enabled</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'namespace',
      header: t`Namespace`,
      sort: (row) => row.namespace,
      cell: (row) => row.namespace ?? 'default',
      isHidden: true,
    },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <Page
      title={t`Products`}
      description={
        <Trans>A product is a type of devices: what they report, how they log in, what raises alarms.</Trans>
      }
    >
      <ObjectList<Product>
        kind={kind}
        label={t`Products`}
        columns={columns}
        mayChange={mayInNamespace(caller, 'operator')}
        isNamespaced
        rowHref={(row) => productHref(row.id)}
        onCreated={(object) => navigate(productHref(String(object.id)))}
        empty={{
          title: <Trans>No products yet</Trans>,
          text: <Trans>Each device belongs to a product. Create one, then add devices to it.</Trans>,
        }}
      />
    </Page>
  );
}
