/** Parts of a product that are edited on their own: its thing model, and its alarm rules. */

import { queryClient, type Schemas } from '../../api/client';
import { useSave, writable, type ConfigurationObject } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import type { ReadValue } from '../../ui/conditional-save';
import type { AlarmRule } from '../alarms/condition';
import { productsPath } from './product-kind';
import { modelOf } from './thing-model';

export type Product = Schemas['Product'] & ConfigurationObject;

/** Parts of a version of a product, whose changes are rejected if there is a newer version. Undefined until the schema of products is known. */
export function useProductParts() {
  const scope = useSchema('ProductInput');
  const save = useSave(productsPath);
  if (!scope) return undefined;
  const partOf = <T>(version: Product, value: T, fieldsOf: (value: T) => object): ReadValue<T> => ({
    value,
    save: async (next) => {
      const body = { ...writable(version, Object.keys(scope.root.properties ?? {})), ...fieldsOf(next) };
      const saved = await save.mutateAsync({ id: version.id, version: version.version, body });
      queryClient.setQueryData([productsPath, 'one', version.id], saved);
    },
  });
  return {
    model: (version: Product) => partOf(version, modelOf(version.model), (model) => ({ model })),
    alarms: (version: Product) =>
      partOf(version, (version.alarms ?? []) as unknown as AlarmRule[], (alarms) => ({ alarms })),
  };
}
