import { Trans } from '@lingui/react/macro';
import { ApiError } from '../../api/client';
import { isStored, useObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { AlarmRuleList } from '../alarms/alarm-rule-editor';
import { productsPath } from '../products/product-kind';
import { useProductParts, type Product } from '../products/product-part';
import { modelOf } from '../products/thing-model';
import type { RelayEndpoint } from './endpoint-address';
import { productOf } from './endpoint-overview';

/** The alarm rules of the product whose devices the connections of the endpoint become. */
export function EndpointAlarmRules({ endpoint }: { endpoint: RelayEndpoint }) {
  const caller = useCaller();
  const id = productOf(endpoint);
  const product = useObject<Product>(productsPath, id);
  const parts = useProductParts();
  if (product.error instanceof ApiError && product.error.status === 404) {
    return (
      <div className="panel">
        <EmptyState title={<Trans>No devices yet</Trans>}>
          <Trans>Alarm rules belong to the product {id}, which the endpoint creates with its first device.</Trans>
        </EmptyState>
      </div>
    );
  }
  if (product.error && !product.data) return <ErrorState error={product.error} />;
  if (!product.data || !parts) return <Loading />;
  const { data } = product;
  return (
    <AlarmRuleList
      stored={parts.alarms(data)}
      read={async () => parts.alarms((await product.refetch({ throwOnError: true })).data ?? data)}
      mayChange={isStored(data) && mayInNamespace(caller, 'operator', data.namespace)}
      keys={(modelOf(data.model).properties ?? []).map((property) => property.id)}
      empty={<Trans>An alarm rule watches the values of all devices of the product {id}.</Trans>}
    />
  );
}
