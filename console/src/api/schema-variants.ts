/** What forms need to know of a schema: the alternatives of a union, and names for its fields. */

import { i18n } from '@lingui/core';
import { fieldNames } from './field-names';
import { resolved, typesOf, type Schema, type SchemaScope } from './json-schema';

/** The schema of a field without `null` as an alternative: a field either is left out or has a value. */
export function plain(schema: Schema, scope: SchemaScope): Schema {
  const own = resolved(schema, scope);
  const parts = own.anyOf?.filter((part) => typesOf(resolved(part, scope)).join() !== 'null');
  if (parts?.length === 1 && parts[0]) {
    const { anyOf: _, ...rest } = own;
    return plain({ ...resolved(parts[0], scope), ...rest }, scope);
  }
  const types = typesOf(own).filter((type) => type !== 'null');
  return { ...own, ...(types.length > 0 ? { type: types.length === 1 ? types[0] : types } : {}) };
}

/** The texts that a schema permits, with their descriptions; `null` if it is no choice. */
export function choiceList(schema: Schema): { value: string; description?: string }[] | null {
  if (schema.enum) {
    const texts = schema.enum.filter((each): each is string => typeof each === 'string');
    return texts.length > 0 ? texts.map((value) => ({ value })) : null;
  }
  if (!schema.oneOf) return null;
  const found: { value: string; description?: string }[] = [];
  for (const each of schema.oneOf) {
    if (typeof each.const === 'string') found.push({ value: each.const, description: each.description });
    else if (each.enum) found.push(...(choiceList(each) ?? []));
    else return null;
  }
  return found;
}

const constants = (variant: Schema) =>
  Object.entries(variant.properties ?? {}).filter(([, property]) => property.const !== undefined);

/** The name of a variant of a union: its constant, its discriminating field, or its required fields. */
export function variantName(variant: Schema): string {
  if (variant.const !== undefined) return String(variant.const);
  const discriminator = constants(variant)[0];
  if (discriminator) return String(discriminator[1].const);
  return (variant.required ?? Object.keys(variant.properties ?? {})).join(', ') || String(variant.type);
}

/** Whether a value has the form of this variant. */
export function isVariant(variant: Schema, value: unknown): boolean {
  if (variant.const !== undefined) return value === variant.const;
  if (variant.enum) return variant.enum.includes(value);
  if (typeof value !== 'object' || value === null) return typesOf(variant).includes(typeof value);
  const record = value as Record<string, unknown>;
  const discriminators = constants(variant);
  if (discriminators.length > 0) return discriminators.every(([name, property]) => record[name] === property.const);
  return (variant.required ?? []).every((name) => name in record);
}

/** What a new value of this variant begins with. */
export function variantStart(variant: Schema): unknown {
  if (variant.const !== undefined) return variant.const;
  if (variant.enum) return variant.enum[0];
  if (variant.properties === undefined) return '';
  const start: Record<string, unknown> = {};
  for (const name of variant.required ?? [])
    start[name] = typesOf(variant.properties[name] ?? {}).includes('object') ? {} : '';
  for (const [name, property] of constants(variant)) start[name] = property.const;
  return start;
}

const units: [string, string][] = [
  ['_ms', 'ms'],
  ['_s', 's'],
  ['_bytes', 'bytes'],
];
const abbreviations: Record<string, string> = { qos: 'QoS', urls: 'URLs' };

/** The label of a field: `max_wait_ms` becomes `Max wait (ms)`, in the language of the page if the name is known. */
export function fieldLabel(name: string): string {
  const unit = units.find(([suffix]) => name.endsWith(suffix));
  const stem = unit ? name.slice(0, -unit[0].length) : name;
  const known = Object.hasOwn(fieldNames, stem) ? fieldNames[stem] : undefined;
  const label = known ? i18n._(known) : wordsOf(stem);
  return unit ? `${label} (${unit[1]})` : label;
}

function wordsOf(name: string): string {
  const text = name
    .replaceAll('_', ' ')
    .replace(/\b(url|urls|sql|tls|qos|id|ca|ttl|api|mqtt)\b/g, (word) => abbreviations[word] ?? word.toUpperCase());
  return text.charAt(0).toUpperCase() + text.slice(1);
}
