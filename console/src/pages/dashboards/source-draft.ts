/** What a card reads, while it is edited: sources of any kinds, also incomplete ones. */

import type { AttributeScope, CardKind, CardSource } from './dashboard';

export type SourceType = CardSource['type'];

export interface SourceDraft {
  type: SourceType;
  device?: string;
  group?: string;
  /** Of alarms. */
  product?: string;
  /** Of attributes. */
  scope: AttributeScope;
  /** Of telemetry and attributes. */
  keys: string[];
  /** Topics or metrics. */
  names: string[];
}

export const maxSources = 20;

const typesOfKind: Record<CardKind, SourceType[]> = {
  statistic: ['telemetry', 'attributes', 'topics', 'node'],
  gauge: ['telemetry', 'attributes', 'topics', 'node'],
  // Charts need a history, which attributes and topics do not have.
  chart: ['telemetry', 'node'],
  table: ['telemetry', 'attributes', 'topics', 'node'],
  status: ['devices', 'telemetry', 'attributes', 'alarms', 'topics', 'node'],
  map: ['telemetry', 'attributes'],
  control: ['devices'],
  text: [],
  live_messages: [],
};

/** What a card of a kind can show; topics and metrics only on a dashboard of the node. */
export function sourceTypes(kind: CardKind, isOfNode: boolean): SourceType[] {
  return typesOfKind[kind].filter((type) => isOfNode || (type !== 'topics' && type !== 'node'));
}

/** Whether a card shows more than one source. */
export const showsSeveral = (kind: CardKind) => ['chart', 'table', 'map', 'status'].includes(kind);

/** Whether a source has values, which can have states. */
export const hasValues = ({ type }: Pick<SourceDraft, 'type'>) => type !== 'devices' && type !== 'alarms';

export function newSource(type: SourceType, keys: string[] = []): SourceDraft {
  return { type, scope: 'server', keys, names: [] };
}

export function draftOf(source: CardSource): SourceDraft {
  const draft = newSource(source.type);
  switch (source.type) {
    case 'topics':
      return { ...draft, names: source.topics };
    case 'node':
      return { ...draft, names: source.metrics };
    case 'alarms':
      return { ...draft, device: source.device, product: source.product };
    default:
      return {
        ...draft,
        device: source.device,
        group: source.device_group,
        ...('keys' in source ? { keys: source.keys } : {}),
        ...('scope' in source ? { scope: source.scope } : {}),
      };
  }
}

/** The source as the node takes it; `null`: something is missing. */
export function sourceOf({ type, device, group, product, scope, keys, names }: SourceDraft): CardSource | null {
  const target = group ? { device_group: group } : device ? { device } : null;
  switch (type) {
    case 'topics':
      return names.length > 0 ? { type, topics: names } : null;
    case 'node':
      return names.length > 0 ? { type, metrics: names } : null;
    case 'alarms':
      return { type, ...(device ? { device } : {}), ...(product ? { product } : {}) };
    case 'devices':
      return target && { type, ...target };
    case 'attributes':
      return target && keys.length > 0 ? { type, ...target, scope, keys } : null;
    default:
      return target && keys.length > 0 ? { type, ...target, keys } : null;
  }
}

/** The source with another type; what the other type has too is kept. Keys of telemetry are not those of attributes. */
export function withType(draft: SourceDraft, type: SourceType): SourceDraft {
  const { device, group, scope } = draft;
  return { ...newSource(type), scope, device, ...(type === 'alarms' ? {} : { group }) };
}
