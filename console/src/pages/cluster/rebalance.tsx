import { Button, Group, Modal, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type ReactNode } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { ErrorState, Loading } from '../../ui/states';

type Rebalance = Schemas['ClusterRebalance'];
type RebalanceNode = Schemas['RebalanceNode'];

const clusterPath = '/api/v1/cluster';
const path = `${clusterPath}/rebalance`;
const refreshMs = 2_000;

/** Opens the dialog that distributes the connections evenly over the nodes. */
export function RebalanceButton() {
  const caller = useCaller();
  const [isOpen, setOpen] = useState(false);
  if (!mayOnNode(caller, 'admin')) return null;
  return (
    <>
      <Button variant="default" onClick={() => setOpen(true)}>
        <Trans>Rebalance</Trans>
      </Button>
      {isOpen && <RebalanceDialog onClose={() => setOpen(false)} />}
    </>
  );
}

function RebalanceDialog({ onClose }: { onClose: () => void }) {
  const rebalance = useRead([path], (signal) => send<Rebalance>('GET', path, { signal }), { every: refreshMs });
  const start = useChange(() => send('POST', path), [[path], [clusterPath]]);
  const cancel = useChange(() => send('DELETE', path), [[path], [clusterPath]]);
  const state = rebalance.data;
  const isRunning = state?.is_running ?? false;
  const error = start.error ?? cancel.error;
  return (
    <Modal opened onClose={onClose} title={<Trans>Rebalance the connections</Trans>} size="xl">
      <Stack gap="md">
        <Text size="sm">
          <Trans>
            Nodes that have more connections than the others disconnect clients, some per second, and still accept all
            clients. Those that are disconnected connect again, through a balancer or their list of servers. Clients
            whose durable session is at the node stay.
          </Trans>
        </Text>
        {state ? (
          <Plan state={state} />
        ) : rebalance.error ? (
          <ErrorState error={rebalance.error} retry={() => void rebalance.refetch()} />
        ) : (
          <Loading />
        )}
        {state?.obstacle && !isRunning && <Text size="sm">{state.obstacle}</Text>}
        {error && (
          <Text c="var(--tg-critical)" role="alert">
            {error.message}
          </Text>
        )}
        <Group justify="space-between">
          {isRunning ? (
            <ShowCall method="DELETE" path={path} ctl="cluster rebalance --cancel" />
          ) : (
            <ShowCall method="POST" path={path} ctl="cluster rebalance" />
          )}
          <Group gap="xs">
            <Button variant="default" onClick={onClose} data-autofocus>
              <Trans>Close</Trans>
            </Button>
            {isRunning ? (
              <Button onClick={() => cancel.mutate(undefined)} loading={cancel.isPending}>
                <Trans>Cancel the rebalancing</Trans>
              </Button>
            ) : (
              <Button
                color="red.8"
                onClick={() => start.mutate(undefined)}
                loading={start.isPending}
                disabled={!state || state.obstacle !== null}
              >
                <Trans>Disconnect clients</Trans>
              </Button>
            )}
          </Group>
        </Group>
      </Stack>
    </Modal>
  );
}

function Plan({ state: { average, nodes } }: { state: Rebalance }) {
  const { t } = useLingui();
  const ofAll = formatNumber(average);
  return (
    <div>
      <div className="table-scroller">
        <table className="data-table" aria-label={t`Connections before and after`}>
          <thead>
            <tr>
              <th>
                <Trans>Node</Trans>
              </th>
              <th className="right">
                <Trans>Connections</Trans>
              </th>
              <th className="right">
                <Trans>Stay in any case</Trans>
              </th>
              <th className="right">
                <Trans>Afterwards</Trans>
              </th>
              <th className="right">
                <Trans>Disconnected</Trans>
              </th>
              <th>
                <Trans>State</Trans>
              </th>
            </tr>
          </thead>
          <tbody>
            {nodes.map((node) => (
              <tr key={node.node}>
                <td>{node.node}</td>
                <td className="right">{formatNumber(node.connections)}</td>
                <td className="right">{node.bound === null ? '–' : formatNumber(node.bound)}</td>
                <td className="right">{formatNumber(node.after)}</td>
                <td className="right">{node.run ? formatNumber(node.run.disconnected) : '–'}</td>
                <td aria-live="polite">
                  <NodeState node={node} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Text size="sm" c="dimmed" mt="xs">
        <Trans>
          The average is {ofAll}. The numbers afterwards are those to expect if the clients connect to nodes with fewer
          connections.
        </Trans>
      </Text>
    </div>
  );
}

function NodeState({ node }: { node: RebalanceNode }): ReactNode {
  if (node.exclusion === 'unreachable') {
    return (
      <StateBadge health="critical">
        <Trans>not reachable</Trans>
      </StateBadge>
    );
  }
  if (node.exclusion === 'draining') {
    return (
      <StateBadge health="warning">
        <Trans>draining</Trans>
      </StateBadge>
    );
  }
  if (node.error !== null) return <StateBadge health="critical">{node.error}</StateBadge>;
  const { run, target } = node;
  if (run?.state === 'running') {
    const goal = formatNumber(run.target);
    return (
      <StateBadge health="warning">
        <Trans>rebalancing to {goal}</Trans>
      </StateBadge>
    );
  }
  if (target !== null) {
    const tooMany = formatNumber(Math.max(node.connections - target, 0));
    return (
      <StateBadge health="warning">
        <Trans>{tooMany} too many</Trans>
      </StateBadge>
    );
  }
  switch (run?.state) {
    case 'reached':
      return (
        <StateBadge health="good">
          <Trans>rebalanced</Trans>
        </StateBadge>
      );
    case 'only_bound':
      return (
        <StateBadge health="good">
          <Trans>all others stay</Trans>
        </StateBadge>
      );
    case 'clients_returned':
      return (
        <StateBadge health="critical">
          <Trans>ended, because clients return to it</Trans>
        </StateBadge>
      );
    case 'cancelled':
      return (
        <StateBadge health="unknown">
          <Trans>cancelled</Trans>
        </StateBadge>
      );
    case 'drained':
      return (
        <StateBadge health="unknown">
          <Trans>ended by a drain</Trans>
        </StateBadge>
      );
    default:
      return (
        <StateBadge health="good">
          <Trans>takes clients</Trans>
        </StateBadge>
      );
  }
}
