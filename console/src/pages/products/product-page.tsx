import { Button } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSettings } from '@tabler/icons-react';
import { useState } from 'react';
import { Link, useLocation, useParams } from 'wouter';
import { choiceName } from '../../api/choice-names';
import { ApiError, useRead, type Schemas } from '../../api/client';
import { isStored, objectPath, send, useObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { ObjectEditor } from '../../ui/object-editor';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { AlarmRuleList } from '../alarms/alarm-rule-editor';
import { productsPath, useProductKind } from './product-kind';
import { useProductParts, type Product } from './product-part';
import { modelOf, parts } from './thing-model';
import { ThingModelEditor } from './thing-model-editor';

export default function ProductPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const { id: coded = '' } = useParams<{ id: string }>();
  const id = decodeURIComponent(coded);
  const [isEditing, setEditing] = useState(false);
  const kind = useProductKind();
  const product = useObject<Product>(productsPath, id);
  const productParts = useProductParts();
  if (!product.data) {
    return (
      <PendingPage
        title={id}
        query={product}
        missing={<EmptyState title={<Trans>There is no product with this id</Trans>} />}
      />
    );
  }
  if (!productParts) {
    return (
      <Page title={id}>
        <Loading />
      </Page>
    );
  }
  const data = product.data;
  const model = modelOf(data.model);
  const mayChange = isStored(data) && mayInNamespace(caller, 'operator', data.namespace);
  const readNewest = async () => (await product.refetch({ throwOnError: true })).data ?? data;
  return (
    <Page
      title={data.name || data.id}
      aside={
        data.enabled === false ? (
          <StateBadge health="warning">
            <Trans>disabled</Trans>
          </StateBadge>
        ) : undefined
      }
      description={data.description}
      actions={
        <>
          <ShowCall method="GET" path={objectPath(productsPath, id)} ctl={`products show ${id}`} />
          <Button variant="default" leftSection={<IconSettings size={14} />} onClick={() => setEditing(true)}>
            <Trans>Settings</Trans>
          </Button>
        </>
      }
    >
      <PageTabs
        tabs={[
          { id: 'overview', label: <Trans>Overview</Trans>, content: <Overview product={data} /> },
          {
            id: 'model',
            label: (
              <>
                <Trans>Thing model</Trans> (
                {formatNumber(parts.reduce((sum, part) => sum + (model[part]?.length ?? 0), 0))})
              </>
            ),
            content: (
              <ThingModelEditor
                stored={productParts.model(data)}
                read={async () => productParts.model(await readNewest())}
                mayChange={mayChange}
              />
            ),
          },
          {
            id: 'alarms',
            label: (
              <>
                <Trans>Alarm rules</Trans> ({formatNumber(data.alarms?.length ?? 0)})
              </>
            ),
            content: (
              <AlarmRuleList
                stored={productParts.alarms(data)}
                read={async () => productParts.alarms(await readNewest())}
                mayChange={mayChange}
                keys={(model.properties ?? []).map((property) => property.id)}
                empty={<Trans>An alarm rule watches the values of all devices of this product.</Trans>}
              />
            ),
          },
        ]}
      />
      {isEditing && (
        <ObjectEditor
          kind={kind}
          object={data}
          title={t`Settings of ${id}`}
          mayChange={mayChange}
          onClose={() => {
            setEditing(false);
            void product.refetch().then(({ error }) => {
              if (error instanceof ApiError && error.status === 404) navigate('/products');
            });
          }}
        />
      )}
    </Page>
  );
}

const namesOf = (field: string, values: string[] | undefined) =>
  values?.map((value) => choiceName(field, value)).join(', ');

function Overview({ product }: { product: Product }) {
  const caller = useCaller();
  const counts = useRead(
    ['device-counts'],
    (signal) => send<Schemas['DeviceCounts']>('GET', '/api/v1/device-counts', { signal }),
    { every: 10_000, enabled: caller.role !== null },
  );
  const { storage } = product;
  const days = storage?.retention_days;
  const all = <Trans>all</Trans>;
  return (
    <div className="grid">
      <Panel
        title={<Trans>Product</Trans>}
        actions={
          <Link href={`/devices?product=${encodeURIComponent(product.id)}`} className="link">
            <Trans>Open the devices</Trans>
          </Link>
        }
      >
        <Facts
          rows={[
            [<Trans>Id</Trans>, <span className="mono">{product.id}</span>],
            [<Trans>Namespace</Trans>, product.namespace ?? 'default'],
            [<Trans>Devices</Trans>, counts.data ? formatNumber(counts.data.products[product.id] ?? 0) : '–'],
            [<Trans>Protocols</Trans>, namesOf('protocols', product.protocols) || all],
            [<Trans>Credentials</Trans>, namesOf('credentials', product.credentials) || all],
            [<Trans>Gateways</Trans>, product.gateway ? <Trans>yes</Trans> : <Trans>no</Trans>],
            [
              <Trans>Keys that are not in the thing model</Trans>,
              product.unknown_keys === 'reject' ? <Trans>are rejected</Trans> : <Trans>are stored</Trans>,
            ],
            [<Trans>Created</Trans>, <Ago ms={product.created_at_ms} />],
            [<Trans>Changed</Trans>, <Ago ms={product.updated_at_ms} />],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Messages</Trans>}>
        <Facts
          rows={[
            [<Trans>Rule chain</Trans>, product.rule_chain ?? <Trans>the root chain</Trans>],
            [
              <Trans>Processing</Trans>,
              product.mode === 'sync' ? (
                <Trans>at once: lowest latency</Trans>
              ) : (
                <Trans>in batches: highest throughput</Trans>
              ),
            ],
            [
              <Trans>Telemetry</Trans>,
              storage?.enabled === false ? (
                <Trans>not stored</Trans>
              ) : days ? (
                <Trans>stored for {formatNumber(days)} days</Trans>
              ) : (
                <Trans>stored as long as the node's setting says</Trans>
              ),
            ],
            [<Trans>Stored keys</Trans>, storage?.keys?.join(', ') || all],
            [<Trans>Sinks</Trans>, storage?.sinks?.join(', ') || '–'],
            [
              <Trans>Self-registration</Trans>,
              product.provisioning ? choiceName('mode', product.provisioning.mode) : <Trans>not possible</Trans>,
            ],
          ]}
        />
      </Panel>
    </div>
  );
}
