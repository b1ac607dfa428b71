import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { choiceName, choiceNames, technicalNames } from './choice-names';
import inputSchemas from './input-schemas.json';
import { choicesOf, resolved, type Schema, type SchemaScope, type SchemaSet } from './json-schema';
import { variantName } from './schema-variants';

i18n.loadAndActivate({ locale: 'en', messages: {} });

/** The choices that forms offer for the fields of a schema: values, and variants of unions. */
function choicesIn(schema: Schema, scope: SchemaScope): { field: string; value: string }[] {
  const found: { field: string; value: string }[] = [];
  const followed = new Set<string>();
  const visit = (part: Schema, field: string) => {
    if (part.$ref !== undefined) {
      const reference = `${field} ${part.$ref}`;
      // Conditions contain conditions.
      if (followed.has(reference)) return;
      followed.add(reference);
    }
    const own = resolved(part, scope);
    const variants = (own.oneOf ?? []).map((each) => resolved(each, scope));
    const values = choicesOf(own, scope) ?? variants.map(variantName);
    found.push(...values.map((value) => ({ field, value })));
    for (const each of [...variants, ...(own.anyOf ?? []), ...(own.allOf ?? [])]) visit(each, field);
    for (const [name, property] of Object.entries(own.properties ?? {})) visit(property, name);
    if (own.items) visit(own.items, field);
    if (typeof own.additionalProperties === 'object') visit(own.additionalProperties, field);
  };
  visit(schema, '');
  return found;
}

const schemas = inputSchemas as unknown as SchemaSet;
const choices = Object.entries(schemas)
  // Others are fields of these.
  .filter(([, schema]) => schema.properties !== undefined)
  .flatMap(([, root]) => choicesIn(root, { schemas, root }));

test('every choice of a schema has a name, or is an identifier that is shown as it is', () => {
  expect(choices.length).toBeGreaterThan(100);
  const isNamed = ({ field, value }: { field: string; value: string }) =>
    Object.hasOwn(choiceNames, `${field}.${value}`) || Object.hasOwn(choiceNames, value) || technicalNames.has(value);
  const nameless = choices.filter((choice) => !isNamed(choice)).map(({ field, value }) => `${field}: ${value}`);
  expect([...new Set(nameless)]).toEqual([]);
});

test('no two choices of a field have the same name', () => {
  const names = new Map<string, string>();
  for (const { field, value } of choices) {
    const key = `${field}: ${choiceName(field, value)}`;
    expect(names.get(key) ?? value, key).toBe(value);
    names.set(key, value);
  }
});

test('a value has another name in another field, and the same identifier everywhere', () => {
  expect(choiceName('on_full', 'drop_oldest')).toBe('the oldest row is dropped');
  expect(choiceName('slow_receivers', 'drop_oldest')).toBe('lose the oldest messages');
  expect(choiceName('digest_algorithm', 'murmur3_32')).toBe('murmur3_32');
});

test('names are in the language of the page; a value that is not known becomes words', () => {
  const { every_second: name } = choiceNames;
  const id = typeof name === 'object' ? name.id : '';
  i18n.loadAndActivate({ locale: 'zh', messages: { [id]: '每秒一次' } });
  expect(choiceName('sync', 'every_second')).toBe('每秒一次');
  expect(choiceName('sync', 'every_minute')).toBe('every minute');
  expect(choiceName('sync', 'constructor')).toBe('constructor');
  i18n.loadAndActivate({ locale: 'en', messages: {} });
});
