/** The texts of schemas that forms show and translate. */

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { normalised, withoutKinds } from '../../src/api/descriptions';
import inputSchemas from '../../src/api/input-schemas.json';
import type { Schema, SchemaScope, SchemaSet } from '../../src/api/json-schema';
import { plain } from '../../src/api/schema-variants';

const sources = join(import.meta.dirname, '../../src');

/** The descriptions of all schemas of request bodies that forms are made from: those that an object kind or a page names. */
export function descriptionsOfForms(): string[] {
  const schemas = inputSchemas as unknown as SchemaSet;
  const files = readdirSync(sources, { recursive: true, encoding: 'utf8' }).filter((file) => /\.tsx?$/.test(file));
  const names = files.flatMap((file) => [
    ...readFileSync(join(sources, file), 'utf8').matchAll(/(?:newSchema: |inputSchema: |useSchema\()'(\w+)'/g),
  ]);
  const found = names.flatMap(([, name = '']) => {
    const root = schemas[name];
    if (!root) throw new Error(`there is no schema ${name}`);
    return descriptionsIn(root, { schemas, root });
  });
  return [...new Set(found)];
}

/** The descriptions of fields, choices and variants; not that of the schema itself, which forms do not show. */
export function descriptionsIn(root: Schema, scope: SchemaScope = { schemas: {}, root }): string[] {
  const found: string[] = [];
  const followed = new Set<string>();
  const visit = (part: Schema, isShown = true) => {
    if (part.$ref !== undefined) {
      const reference = `${part.$ref} ${part.description}`;
      // Conditions contain conditions.
      if (followed.has(reference)) return;
      followed.add(reference);
    }
    const own = plain(part, scope);
    if (isShown && own.description) found.push(withoutKinds(normalised(own.description)));
    for (const each of [...(own.oneOf ?? []), ...(own.anyOf ?? []), ...(own.allOf ?? [])]) visit(each);
    for (const property of Object.values(own.properties ?? {})) if (property.const === undefined) visit(property);
    if (own.items) visit(own.items);
    if (typeof own.additionalProperties === 'object') visit(own.additionalProperties);
  };
  visit(root, false);
  return [...new Set(found)];
}
