import { api, unwrap, useRead, type Schemas } from '../../api/client';
import { mayInNamespace, mayOnNode, useCaller, type Caller } from '../../api/session';

/** As many as the node sends on one page. */
const maxProducts = 1_000;

/** The products to choose from. */
export function useProducts(isEnabled = true) {
  return useRead(
    ['products', 'choice'],
    (signal) => unwrap(api.GET('/api/v1/products', { params: { query: { limit: maxProducts } }, signal })),
    { enabled: isEnabled },
  );
}

/** Whether the caller may change what belongs to a product, such as its devices: they are in the namespace of the product. */
export function useMayChangeProduct(): (product: string) => boolean {
  const caller = useCaller();
  const isOperator = mayOnNode(caller, 'operator');
  const products = useProducts(!isOperator && caller.namespaces.length > 0);
  return (id) => mayChangeProduct(caller, products.data?.data ?? [], id);
}

type ProductNamespace = Pick<Schemas['Product'], 'id' | 'namespace'>;

export function mayChangeProduct(caller: Caller, products: readonly ProductNamespace[], id: string): boolean {
  if (mayOnNode(caller, 'operator')) return true;
  const product = products.find((each) => each.id === id);
  return product !== undefined && mayInNamespace(caller, 'operator', product.namespace ?? 'default');
}
