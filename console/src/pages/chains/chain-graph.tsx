/** The graph of a rule chain: React Flow, in a chunk of its own. */

import {
  Background,
  Controls,
  Handle,
  Position,
  ReactFlow,
  useReactFlow,
  useStore,
  type Connection,
  type Edge,
  type Node,
  type NodeProps,
} from '@xyflow/react';
import '@xyflow/react/dist/style.css';
import { useComputedColorScheme } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { useEffect, useMemo } from 'react';
import { nodeTypeName, outcomeName } from '../../api/value-names';
import { outcomes, positions, withoutNode, withRelation, type Chain, type ChainNode, type Outcome } from './graph';

type GraphNode = Node<{ node: ChainNode; isFirst: boolean }, 'chain'>;

const nodeTypes = { chain: GraphNodeView };

const fitOptions = { maxZoom: 1, padding: 0.15 };

const edgeColour: Record<Outcome, string> = {
  success: 'var(--tg-dimmed)',
  true: 'var(--tg-good)',
  false: 'var(--tg-warning)',
  failure: 'var(--tg-critical)',
};

export default function ChainGraph({
  chain,
  selected,
  onSelect,
  onChange,
  isReadOnly,
}: {
  chain: Chain;
  selected: string | null;
  onSelect: (id: string | null) => void;
  onChange: (chain: Chain) => void;
  isReadOnly: boolean;
}) {
  const { t, i18n } = useLingui();
  const scheme = useComputedColorScheme('light');
  const first = chain.first ?? chain.nodes[0]?.id;
  const nodes = useMemo((): GraphNode[] => {
    const places = positions(chain);
    return chain.nodes.map((node) => ({
      id: node.id,
      type: 'chain',
      position: places.get(node.id) ?? { x: 0, y: 0 },
      data: { node, isFirst: node.id === first },
      selected: node.id === selected,
      ariaLabel: `${nodeTypeName(node.type)} ${node.id}`,
    }));
  }, [chain, first, i18n.locale, selected]);
  const edges = useMemo(
    (): Edge[] =>
      chain.relations.map(({ from, to, on }) => ({
        id: `${from} ${on} ${to}`,
        source: from,
        target: to,
        sourceHandle: on,
        label: outcomeName(on),
        style: { stroke: edgeColour[on] },
      })),
    [chain.relations, i18n.locale],
  );
  const connect = ({ source, target, sourceHandle }: Connection) =>
    onChange(withRelation(chain, { from: source, to: target, on: (sourceHandle ?? 'success') as Outcome }));
  return (
    <div className="chain-graph" role="region" aria-label={t`Graph of the chain`}>
      <ReactFlow
        key={chain.nodes.length}
        nodes={nodes}
        edges={edges}
        nodeTypes={nodeTypes}
        colorMode={scheme}
        fitView
        fitViewOptions={fitOptions}
        minZoom={0.2}
        nodesDraggable={false}
        nodesConnectable={!isReadOnly}
        deleteKeyCode={isReadOnly ? null : ['Delete', 'Backspace']}
        onConnect={connect}
        onNodeClick={(_, node) => onSelect(node.id)}
        onPaneClick={() => onSelect(null)}
        onNodesChange={(changes) => {
          for (const change of changes) {
            if (change.type === 'select' && change.selected) onSelect(change.id);
            if (change.type === 'remove') {
              onChange(withoutNode(chain, change.id));
              onSelect(null);
            }
          }
        }}
        onEdgesDelete={(removed) =>
          onChange({
            ...chain,
            relations: chain.relations.filter(
              ({ from, to, on }) => !removed.some(({ id }) => id === `${from} ${on} ${to}`),
            ),
          })
        }
      >
        <FitToSize />
        <Background />
        <Controls showInteractive={false} position="top-left" />
      </ReactFlow>
    </div>
  );
}

/** Keeps the whole chain visible when the space for it changes, such as when a phone is turned. */
function FitToSize() {
  const { fitView } = useReactFlow();
  const width = useStore((state) => state.width);
  const height = useStore((state) => state.height);
  useEffect(() => {
    if (width > 0 && height > 0) void fitView(fitOptions);
  }, [fitView, width, height]);
  return null;
}

function GraphNodeView({ data, selected }: NodeProps<GraphNode>) {
  const { node, isFirst } = data;
  const all = outcomes(node.type);
  const summary = node.condition ?? node.select ?? node.topic ?? node.sink ?? node.message;
  return (
    <div className={`chain-node${selected ? ' chain-node-selected' : ''}${isFirst ? ' chain-node-first' : ''}`}>
      <Handle type="target" position={Position.Top} />
      <div className="chain-node-type">{nodeTypeName(node.type)}</div>
      <div className="chain-node-id">{node.id}</div>
      {typeof summary === 'string' && summary !== '' && <div className="chain-node-summary mono">{summary}</div>}
      {all.map((outcome, index) => (
        <Handle
          key={outcome}
          id={outcome}
          type="source"
          position={Position.Bottom}
          title={outcomeName(outcome)}
          style={{ left: `${((index + 1) * 100) / (all.length + 1)}%`, background: edgeColour[outcome] }}
        />
      ))}
    </div>
  );
}
