import { Button, Select } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconFileImport, IconPlus } from '@tabler/icons-react';
import { useCallback } from 'react';
import { api, unwrap, usePages, type Schemas } from '../../api/client';
import type { paths } from '../../api/schema';
import { DataTable, pagesOf, useNodeOrder, type Column, type NodeOrder } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { SearchField, useSearch } from '../../ui/search-toolbar';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { mayInNamespace, useCaller } from '../../api/session';
import { useProducts } from '../products/products';
import { AddDevice } from './add-device';
import { deviceHref, useDeviceColumns } from './device-columns';
import { ExportDevices } from './export-devices';
import { ImportDevices } from './import-devices';

type Device = Schemas['Device'];

type Sort = NonNullable<NonNullable<paths['/api/v1/devices']['get']['parameters']['query']>['sort']>;

const nodeOrder: NodeOrder = {
  name: 'name',
  id: 'id',
  state: 'state',
  seen: 'last_seen_at_ms',
  product: 'product',
  group: 'group',
  gateway: 'parent',
  created: 'created_at_ms',
};

const pageSize = 200;
const refreshMs = 5_000;

export default function DevicesPage() {
  const { t } = useLingui();
  const [state, setState] = useUrlState('state');
  const [product, setProduct] = useUrlState('product');
  const search = useSearch();
  const { wanted: text } = search;
  // In the address, so that the search can open it.
  const [dialog, setDialog] = useUrlState('new');
  const mayChange = mayInNamespace(useCaller(), 'operator');
  const sort = useNodeOrder(nodeOrder);
  const products = useProducts();
  const read = useCallback(
    (after: string | undefined, signal: AbortSignal) =>
      unwrap(
        api.GET('/api/v1/devices', {
          params: {
            query: {
              after,
              limit: pageSize,
              ...(sort ? { sort: sort as Sort } : {}),
              ...(text ? { text } : {}),
              ...(state ? { state } : {}),
              ...(product ? { product } : {}),
            },
          },
          signal,
        }),
      ),
    [product, sort, state, text],
  );
  const devices = usePages<Device>(['devices', state, product, text, sort], read, { every: refreshMs });
  const shared = useDeviceColumns();
  const columns: Column<Device>[] = [
    shared.name,
    shared.id,
    shared.state,
    shared.seen,
    shared.product,
    { id: 'group', header: t`Group`, cell: (device) => device.group ?? '–', isHidden: true },
    { id: 'gateway', header: t`Gateway`, cell: (device) => device.parent ?? '–', isHidden: true },
    {
      id: 'tags',
      header: t`Tags`,
      cell: (device) =>
        Object.entries(device.tags)
          .map(([key, value]) => `${key}=${value}`)
          .join(', ') || '–',
    },
    {
      id: 'created',
      header: t`Created`,
      sort: (device) => device.created_at_ms,
      cell: (device) => <Ago ms={device.created_at_ms} />,
      isHidden: true,
    },
  ];
  const isFiltered = Boolean(text || state || product);
  const add = mayChange && (
    <>
      <Button variant="default" leftSection={<IconFileImport size={14} />} onClick={() => setDialog('import')}>
        <Trans>Import a file</Trans>
      </Button>
      <Button leftSection={<IconPlus size={14} />} onClick={() => setDialog('1')}>
        <Trans>Add a device</Trans>
      </Button>
    </>
  );
  return (
    <Page
      title={t`Devices`}
      actions={
        <>
          {mayChange && <ExportDevices />}
          {add}
        </>
      }
    >
      <DataTable
        name="devices"
        label={t`Devices`}
        columns={columns}
        nodeOrder={nodeOrder}
        rowKey={(device) => device.id}
        rowHref={deviceHref}
        {...pagesOf(devices)}
        toolbar={
          <>
            <SearchField label={t`Part of an id or name`} search={search} />
            <Select
              aria-label={t`State`}
              placeholder={t`Any state`}
              clearable
              w={160}
              value={state || null}
              onChange={(value) => setState(value ?? '')}
              data={[
                { value: 'online', label: t`online` },
                { value: 'offline', label: t`offline` },
                { value: 'notActive', label: t`never connected` },
              ]}
            />
            <Select
              aria-label={t`Product`}
              placeholder={t`Any product`}
              clearable
              searchable
              w={180}
              value={product || null}
              onChange={(value) => setProduct(value ?? '')}
              data={(products.data?.data ?? []).map((each) => each.id)}
            />
          </>
        }
        empty={
          isFiltered ? (
            <EmptyState title={<Trans>No device matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No devices yet</Trans>} actions={add}>
              <Trans>A device has credentials of its own. What it reports is stored and can raise alarms.</Trans>
            </EmptyState>
          )
        }
      />
      {dialog === '1' && mayChange && <AddDevice onClose={() => setDialog('')} />}
      {dialog === 'import' && mayChange && <ImportDevices onClose={() => setDialog('')} />}
    </Page>
  );
}
