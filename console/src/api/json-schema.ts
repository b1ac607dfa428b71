/** The part of JSON Schema that the node's API uses: the schema of a field, and what is wrong with a value. */

import { plural, t } from '@lingui/core/macro';

export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string | string[];
  description?: string;
  default?: unknown;
  enum?: unknown[];
  const?: unknown;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minItems?: number;
  maxItems?: number;
  minProperties?: number;
  maxProperties?: number;
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  oneOf?: Schema[];
  anyOf?: Schema[];
  allOf?: Schema[];
  writeOnly?: boolean;
}

export type SchemaSet = Record<string, Schema>;

/** Where references of a schema point to. */
export interface SchemaScope {
  schemas: SchemaSet;
  root: Schema;
}

/** A value that is wrong, with the path of its field such as `to.mqtt.topic`. */
export interface Problem {
  path: string;
  message: string;
}

export function resolved(schema: Schema, scope: SchemaScope): Schema {
  let current = schema;
  for (let depth = 0; current.$ref !== undefined && depth < 8; depth += 1) {
    const name = current.$ref.split('/').pop() ?? '';
    const target: Schema | undefined = current.$ref.startsWith('#/$defs/')
      ? scope.root.$defs?.[name]
      : scope.schemas[name];
    if (target === undefined) return {};
    const { $ref: _, ...rest } = current;
    current = { ...target, ...rest };
  }
  return current;
}

export const typesOf = (schema: Schema): string[] =>
  schema.type === undefined ? [] : Array.isArray(schema.type) ? schema.type : [schema.type];

/** The values that a field can have, if they are a list. */
export function choicesOf(schema: Schema, scope: SchemaScope): string[] | undefined {
  const own = resolved(schema, scope);
  if (own.enum) return own.enum.filter((value) => value !== null).map(String);
  if (own.const !== undefined) return [String(own.const)];
  const parts = own.oneOf ?? own.anyOf;
  if (!parts) return undefined;
  const choices: string[] = [];
  for (const part of parts) {
    if (typesOf(resolved(part, scope)).join() === 'null') continue;
    const inner = choicesOf(part, scope);
    if (inner === undefined) return undefined;
    choices.push(...inner);
  }
  return choices;
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value;
}

const join = (path: string, name: string) => (path === '' ? name : `${path}.${name}`);

/** Everything that is wrong with `value`. */
export function problemsOf(value: unknown, schema: Schema, scope: SchemaScope, path = ''): Problem[] {
  const own = resolved(schema, scope);
  const alternatives = own.oneOf ?? own.anyOf;
  if (alternatives) {
    const all = alternatives.map((part) => problemsOf(value, part, scope, path));
    if (all.some((problems) => problems.length === 0)) return [];
    const choices = choicesOf(own, scope);
    if (choices) return [{ path, message: oneOfThese(choices) }];
    // The alternative that fits best tells what is missing.
    return all.reduce((best, problems) => (depth(problems) > depth(best) ? problems : best));
  }
  const actual = typeOf(value);
  const types = typesOf(own);
  const fits = types.length === 0 || types.includes(actual) || (actual === 'integer' && types.includes('number'));
  if (!fits) return [{ path, message: expectedType(types) }];
  if (value === null) return [];
  if (own.enum && !own.enum.includes(value)) return [{ path, message: oneOfThese(own.enum.map(String)) }];
  if (own.const !== undefined && own.const !== value) return [{ path, message: oneOfThese([String(own.const)]) }];
  if (typeof value === 'string') return textProblems(value, own, path);
  if (typeof value === 'number') return numberProblems(value, own, path);
  if (Array.isArray(value)) return listProblems(value, own, scope, path);
  if (actual === 'object') return objectProblems(value as Record<string, unknown>, own, scope, path);
  return [];
}

const depth = (problems: Problem[]) => Math.max(...problems.map((each) => each.path.split('.').length));

function oneOfThese(values: string[]): string {
  const list = values.join(', ');
  return t`Expected: ${list}`;
}

function expectedType(types: string[]): string {
  if (types.includes('integer')) return t`Expected a whole number`;
  if (types.includes('number')) return t`Expected a number`;
  if (types.includes('boolean')) return t`Expected true or false`;
  if (types.includes('array')) return t`Expected a list`;
  if (types.includes('object')) return t`Expected an object`;
  return t`Expected a text`;
}

function textProblems(value: string, schema: Schema, path: string): Problem[] {
  const { minLength = 0, maxLength, pattern } = schema;
  if (value.length < minLength) {
    const message =
      value.length === 0
        ? t`Required`
        : plural(minLength, { one: 'At least # character', other: 'At least # characters' });
    return [{ path, message }];
  }
  if (maxLength !== undefined && value.length > maxLength) {
    return [{ path, message: plural(maxLength, { one: 'At most # character', other: 'At most # characters' }) }];
  }
  if (pattern !== undefined && !matches(value, pattern)) {
    return [{ path, message: t`Contains characters that are not allowed, or has another form than ${pattern}` }];
  }
  return [];
}

function matches(value: string, pattern: string): boolean {
  try {
    return new RegExp(pattern, 'u').test(value);
  } catch {
    return true;
  }
}

function numberProblems(value: number, { minimum, maximum }: Schema, path: string): Problem[] {
  const isLow = minimum !== undefined && value < minimum;
  const isHigh = maximum !== undefined && value > maximum;
  if (!isLow && !isHigh) return [];
  const [least, most] = [String(minimum), String(maximum)];
  if (minimum !== undefined && maximum !== undefined) return [{ path, message: t`From ${least} to ${most}` }];
  return [{ path, message: isLow ? t`At least ${least}` : t`At most ${most}` }];
}

function listProblems(value: unknown[], schema: Schema, scope: SchemaScope, path: string): Problem[] {
  const { minItems = 0, maxItems, items } = schema;
  if (value.length < minItems) return [{ path, message: t`At least ${minItems} entries` }];
  if (maxItems !== undefined && value.length > maxItems) return [{ path, message: t`At most ${maxItems} entries` }];
  return items ? value.flatMap((each, index) => problemsOf(each, items, scope, join(path, String(index)))) : [];
}

function objectProblems(value: Record<string, unknown>, schema: Schema, scope: SchemaScope, path: string): Problem[] {
  const problems: Problem[] = [];
  for (const name of schema.required ?? []) {
    if (value[name] === undefined) problems.push({ path: join(path, name), message: t`Required` });
  }
  for (const [name, inner] of Object.entries(value)) {
    if (inner === undefined) continue;
    const field = schema.properties?.[name];
    if (field) problems.push(...problemsOf(inner, field, scope, join(path, name)));
    else if (schema.additionalProperties === false) {
      problems.push({ path: join(path, name), message: t`There is no field of this name` });
    } else if (typeof schema.additionalProperties === 'object') {
      problems.push(...problemsOf(inner, schema.additionalProperties, scope, join(path, name)));
    }
  }
  const { maxProperties } = schema;
  if (maxProperties !== undefined && Object.keys(value).length > maxProperties) {
    problems.push({ path, message: t`At most ${maxProperties} entries` });
  }
  return problems;
}
