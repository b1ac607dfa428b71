/** Thing models in JetLinks' format. Parts that the editor does not know are kept. */

export interface ValueType {
  type: string;
  unit?: string;
  min?: number;
  max?: number;
  scale?: number;
  maxLength?: number;
  format?: string;
  bodyType?: string;
  trueText?: string;
  trueValue?: unknown;
  falseText?: string;
  falseValue?: unknown;
  elements?: { value: string; text: string }[];
  elementType?: ValueType;
  properties?: Item[];
  [other: string]: unknown;
}

/** A property, function, event, tag, or field of an object. */
export interface Item {
  id: string;
  name?: string;
  description?: string;
  valueType?: ValueType;
  inputs?: Item[];
  output?: ValueType;
  async?: boolean;
  expands?: Record<string, unknown>;
  [other: string]: unknown;
}

export type Part = 'properties' | 'functions' | 'events' | 'tags';

export interface ThingModel {
  properties?: Item[];
  functions?: Item[];
  events?: Item[];
  tags?: Item[];
  [other: string]: unknown;
}

export const parts: Part[] = ['properties', 'functions', 'events', 'tags'];

export const valueTypes = [
  'int',
  'long',
  'float',
  'double',
  'boolean',
  'string',
  'password',
  'enum',
  'date',
  'file',
  'array',
  'object',
  'geoPoint',
];

/** The model of a product, which may be stored as the text of an object. */
export function modelOf(value: unknown): ThingModel {
  if (typeof value === 'string') {
    try {
      return JSON.parse(value) as ThingModel;
    } catch {
      return {};
    }
  }
  return typeof value === 'object' && value !== null ? (value as ThingModel) : {};
}

/** A value type in one line: `float, °C, -40 … 150`. */
export function valueTypeText(type: ValueType | undefined): string {
  if (!type) return '–';
  const range =
    type.min !== undefined || type.max !== undefined ? `${type.min ?? ''} … ${type.max ?? ''}`.trim() : undefined;
  const inner =
    type.type === 'array'
      ? type.elementType?.type
      : type.type === 'object'
        ? (type.properties ?? []).map(({ id }) => id).join(', ')
        : type.type === 'enum'
          ? (type.elements ?? []).map(({ value }) => value).join(', ')
          : undefined;
  return [type.type, type.unit, range, inner].filter(Boolean).join(', ');
}

/** What is missing or doubled before the node sees it. */
export function itemProblem(item: Item, others: Item[]): 'no-id' | 'id-taken' | undefined {
  if (item.id.trim() === '') return 'no-id';
  return others.some(({ id }) => id === item.id) ? 'id-taken' : undefined;
}

/** Fields of a value type that belong to the type; switching the type drops those of the old one. */
export function withType(type: string, previous: ValueType): ValueType {
  const kept: ValueType = { type };
  if (['int', 'long', 'float', 'double'].includes(type)) {
    if (previous.unit !== undefined) kept.unit = previous.unit;
    if (previous.min !== undefined) kept.min = previous.min;
    if (previous.max !== undefined) kept.max = previous.max;
  }
  if (type === 'enum') kept.elements = previous.elements ?? [{ value: '', text: '' }];
  if (type === 'array') kept.elementType = previous.elementType ?? { type: 'float' };
  if (type === 'object') kept.properties = previous.properties ?? [];
  return kept;
}
