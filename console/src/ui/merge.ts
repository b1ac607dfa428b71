/** Three-way merge of JSON values: what two people have changed in the same version of an object. */

/** A step from a value to a part of it: the name of a field, the position in a list, or the identity of an item. */
export type Step = string | number | { item: string };

export type Choice = 'mine' | 'theirs';

/** A part of the object that at least one of the two has changed. */
export interface Change {
  path: Step[];
  base: unknown;
  mine: unknown;
  theirs: unknown;
  /** Whose change it is; `both` have changed it to different values, of which one is chosen. */
  by: Choice | 'both' | 'merged';
  /** What both have added to a list and removed from it, in one list. */
  merged?: unknown;
}

export interface Merge {
  value: unknown;
  changes: Change[];
}

type Json = Record<string, unknown>;

/** The key of a change in the choices. */
export const changeKey = ({ path }: Pick<Change, 'path'>) => JSON.stringify(path);

/**
 * The changes of both in one value. Where both have changed the same part, the choice applies; without one, mine.
 * Fields of objects are merged one by one; items of lists by their `id` or `name`, or by their position.
 */
export function merge(
  base: unknown,
  mine: unknown,
  theirs: unknown,
  choices: ReadonlyMap<string, Choice> = new Map(),
): Merge {
  const changes: Change[] = [];
  const value = mergedValue(base, mine, theirs, [], (change) => {
    changes.push(change);
    if (change.by === 'merged') return change.merged;
    const chosen = change.by === 'both' ? (choices.get(changeKey(change)) ?? 'mine') : change.by;
    return change[chosen];
  });
  return { value, changes };
}

/** Records a change, and returns the value that applies. */
type Decide = (change: Change) => unknown;

function mergedValue(base: unknown, mine: unknown, theirs: unknown, path: Step[], decide: Decide): unknown {
  if (isEqual(mine, theirs)) return theirs;
  if (isObject(base) && isObject(mine) && isObject(theirs) && areOfOneKind(base, mine, theirs)) {
    const names = [...new Set([...Object.keys(theirs), ...Object.keys(mine)])];
    const entries = names.map((name) => [
      name,
      mergedValue(base[name], mine[name], theirs[name], [...path, name], decide),
    ]);
    return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  }
  if (Array.isArray(base) && Array.isArray(mine) && Array.isArray(theirs)) {
    const list = mergedList(base, mine, theirs, path, decide);
    if (list) return list;
  }
  const isMineChanged = !isEqual(base, mine);
  const by = isMineChanged && !isEqual(base, theirs) ? 'both' : isMineChanged ? 'mine' : 'theirs';
  return decide({ path, base, mine, theirs, by });
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The fields of objects of different kinds do not fit together. */
function areOfOneKind(base: Json, mine: Json, theirs: Json): boolean {
  return ['type', 'kind'].every((tag) => isEqual(base[tag], mine[tag]) && isEqual(base[tag], theirs[tag]));
}

/** `undefined`: the lists cannot be merged by their items. */
function mergedList(
  base: unknown[],
  mine: unknown[],
  theirs: unknown[],
  path: Step[],
  decide: Decide,
): unknown[] | undefined {
  const ids = [base, mine, theirs].map(identities);
  const [baseIds, myIds, theirIds] = ids;
  if (baseIds && myIds && theirIds) {
    const find = (list: unknown[], own: string[], id: string) => list[own.indexOf(id)];
    const common = (own: string[], other: string[]) => own.filter((id) => other.includes(id)).join('\n');
    // The order is theirs, unless only I have changed it.
    const isTheirOrderOld = common(theirIds, baseIds) === common(baseIds, theirIds);
    const order = isTheirOrderOld ? [...myIds, ...theirIds] : [...theirIds, ...myIds];
    return [...new Set(order)]
      .map((id) =>
        mergedValue(
          find(base, baseIds, id),
          find(mine, myIds, id),
          find(theirs, theirIds, id),
          [...path, { item: id }],
          decide,
        ),
      )
      .filter((item) => item !== undefined);
  }
  const areObjects = [base, mine, theirs].every((list) => list.every(isObject));
  if (areObjects && base.length === mine.length && base.length === theirs.length)
    return theirs.map((item, index) => mergedValue(base[index], mine[index], item, [...path, index], decide));
  const areTexts = [base, mine, theirs].every((list) => list.every((item) => typeof item === 'string'));
  if ((!areTexts && !areObjects) || isEqual(base, mine) || isEqual(base, theirs)) return undefined;
  const set = mergedSet(base, mine, theirs);
  return set && (decide({ path, base, mine, theirs, by: 'merged', merged: set }) as unknown[]);
}

/** What both have added and removed; `undefined` if both have removed, which may be a change, of the same item. */
function mergedSet(base: unknown[], mine: unknown[], theirs: unknown[]): unknown[] | undefined {
  const has = (list: unknown[], item: unknown) => list.some((each) => isEqual(each, item));
  const removed = base.filter((item) => !has(mine, item));
  const added = mine.filter((item) => !has(base, item));
  if (removed.some((item) => !has(theirs, item))) return undefined;
  const kept = theirs.filter((item) => !has(removed, item));
  return [...kept, ...added.filter((item) => !has(kept, item))];
}

/** The identities of items, if all have different ones. */
function identities(list: unknown[]): string[] | undefined {
  const ids = list.map((item) => (isObject(item) ? (item.id ?? item.name) : undefined));
  const areTexts = ids.every((id): id is string => typeof id === 'string' && id !== '');
  return areTexts && new Set(ids).size === ids.length ? ids : undefined;
}

/** Whether two values mean the same to the node, for which `null` is a field without a value. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (a === b || (a ?? undefined) === (b ?? undefined)) return true;
  if (Array.isArray(a) && Array.isArray(b))
    return a.length === b.length && a.every((item, index) => isEqual(item, b[index]));
  if (!isObject(a) || !isObject(b)) return false;
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].every((name) => isEqual(a[name], b[name]));
}

const secretName = /password|passphrase|secret|token|private_key|api_key|credential/i;
const mask = '***';
const maxShownChars = 400;

/** A value as text, without secrets that were typed; `field` is the name of its field. */
export function valueText(value: unknown, field: string): string {
  if (value === undefined || value === null || value === '') return '–';
  if (typeof value === 'string') return secretName.test(field) ? mask : value;
  const isSecret = secretName.test(field);
  const text = JSON.stringify(value, (name, inner: unknown) =>
    typeof inner === 'string' && (isSecret || secretName.test(name)) ? mask : inner,
  );
  return text.length > maxShownChars ? `${text.slice(0, maxShownChars)}…` : text;
}
