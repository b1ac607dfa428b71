/** Schemas of request bodies, for forms. They are generated together with the types of the client. */

import { useQuery } from '@tanstack/react-query';
import type { SchemaScope, SchemaSet } from './json-schema';

const load = () => import('./input-schemas.json').then((module) => module.default as unknown as SchemaSet);

/** The schema of a request body, by its name in the OpenAPI document. */
export function useSchema(name: string): SchemaScope | undefined {
  const all = useQuery({ queryKey: ['input-schemas'], queryFn: load, staleTime: Infinity, gcTime: Infinity });
  const root = all.data?.[name];
  return all.data && root ? { schemas: all.data, root } : undefined;
}
