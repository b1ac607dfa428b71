/** Rule chains as graphs: the outcomes of a node, positions, and what a change of the graph does to the chain. */

export type Outcome = 'success' | 'failure' | 'true' | 'false';

export interface ChainNode {
  id: string;
  type: string;
  [field: string]: unknown;
}

export interface Relation {
  from: string;
  to: string;
  on: Outcome;
}

export interface Chain {
  nodes: ChainNode[];
  relations: Relation[];
  first?: string | null;
  description?: string;
}

export function outcomes(type: string): Outcome[] {
  return type === 'filter' ? ['true', 'false', 'failure'] : ['success', 'failure'];
}

export const columnWidth = 240;
export const levelHeight = 130;
/** Space left of nodes that relations between other levels pass. */
const laneWidth = 150;

/** Levels from top to bottom by the longest way to a node; nodes of a level are in the order of the list. */
export function positions(chain: Chain): Map<string, { x: number; y: number }> {
  const depth = new Map(chain.nodes.map(({ id }) => [id, 0]));
  // A chain has no cycles; the bound holds for one that is being edited.
  for (let round = 0; round < chain.nodes.length; round += 1) {
    let isSettled = true;
    for (const { from, to } of chain.relations) {
      const wanted = (depth.get(from) ?? 0) + 1;
      if (depth.has(to) && (depth.get(to) ?? 0) < wanted && wanted <= chain.nodes.length) {
        depth.set(to, wanted);
        isSettled = false;
      }
    }
    if (isSettled) break;
  }
  const used = new Map<number, number>();
  const places = new Map<string, { x: number; y: number }>();
  for (const { id } of chain.nodes) {
    const level = depth.get(id) ?? 0;
    const isPassed = chain.relations.some(
      ({ from, to }) => (depth.get(from) ?? 0) < level && level < (depth.get(to) ?? 0),
    );
    const column = used.get(level) ?? 0;
    used.set(level, column + 1);
    places.set(id, { x: column * columnWidth + (isPassed ? laneWidth : 0), y: level * levelHeight });
  }
  return places;
}

/** Whether `to` leads to `from` already: the relation would close a cycle, which the node rejects. */
export function closesCycle(chain: Chain, from: string, to: string): boolean {
  const seen = new Set<string>();
  const open = [to];
  for (let id = open.pop(); id !== undefined; id = open.pop()) {
    if (id === from) return true;
    if (seen.has(id)) continue;
    seen.add(id);
    open.push(...chain.relations.filter((each) => each.from === id).map((each) => each.to));
  }
  return false;
}

export function withRelation(chain: Chain, relation: Relation): Chain {
  const isKnown = chain.relations.some(
    (each) => each.from === relation.from && each.to === relation.to && each.on === relation.on,
  );
  if (isKnown || closesCycle(chain, relation.from, relation.to)) return chain;
  return { ...chain, relations: [...chain.relations, relation] };
}

export function withoutNode(chain: Chain, id: string): Chain {
  return {
    ...chain,
    nodes: chain.nodes.filter((node) => node.id !== id),
    relations: chain.relations.filter(({ from, to }) => from !== id && to !== id),
    ...(chain.first === id ? { first: null } : {}),
  };
}

/** Changes a node; a new id or type is applied to its relations. */
export function withNode(chain: Chain, id: string, node: ChainNode): Chain {
  const allowed = outcomes(node.type);
  const renamed = (other: string) => (other === id ? node.id : other);
  return {
    ...chain,
    nodes: chain.nodes.map((each) => (each.id === id ? node : each)),
    relations: chain.relations
      .filter(({ from, on }) => from !== id || allowed.includes(on))
      .map((relation) => ({ ...relation, from: renamed(relation.from), to: renamed(relation.to) })),
    ...(chain.first === id ? { first: node.id } : {}),
  };
}

export function freeId(chain: Chain, type: string): string {
  const taken = new Set(chain.nodes.map(({ id }) => id));
  if (!taken.has(type)) return type;
  let number = 2;
  while (taken.has(`${type}-${number}`)) number += 1;
  return `${type}-${number}`;
}
