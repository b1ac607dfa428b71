import './simulations.css';

import { Alert, Button, Progress, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconTrash } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';
import { Link, useParams } from 'wouter';
import { useChange } from '../../api/client';
import { objectPath, send, useObject } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatDuration, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { Facts, Page, Panel } from '../../ui/page';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago, LiveTime } from '../../ui/time';
import { Tile } from '../home/tile';
import { describe } from './descriptions';
import {
  isRunning,
  PhaseProgress,
  PhaseStateBadge,
  refreshMs,
  RunButton,
  SimulationStateBadge,
  simulationsPath,
  type Simulation,
  type SimulationRun,
} from './simulation';

/** A simulation, live while it runs. */
export default function SimulationPage() {
  const { t, i18n } = useLingui();
  const { name = '' } = useParams<{ name: string }>();
  const query = useObject<Simulation>(simulationsPath, name, { every: refreshMs });
  const simulation = query.data;
  if (!simulation) {
    return (
      <PendingPage
        title={name}
        query={query}
        missing={<EmptyState title={<Trans>There is no simulation with this name</Trans>} />}
      />
    );
  }
  const path = objectPath(simulationsPath, name);
  const run = simulation.run;
  return (
    <Page
      title={name}
      aside={run && <SimulationStateBadge simulation={simulation} />}
      description={describe(i18n, simulation)}
      actions={
        <>
          <ShowCall method="GET" path={path} ctl={`simulations show ${name}`} />
          <CleanButton simulation={simulation} />
          <RunButton simulation={simulation} />
        </>
      }
    >
      {simulation.unavailable && <Alert color="yellow">{simulation.unavailable}</Alert>}
      {run?.error && (
        <Alert color="red" title={t`The run failed`}>
          {run.error}
        </Alert>
      )}
      {run && run.action === 'run' && run.progress.phases.length > 0 && <RunTiles run={run} />}
      {run && <SetupProgress run={run} />}
      <div className="simulation-columns">
        <Panel title={<Trans>Phases</Trans>}>
          <Phases simulation={simulation} />
        </Panel>
        <Panel title={<Trans>Simulation</Trans>}>
          <Facts
            rows={[
              [
                <Trans>Devices</Trans>,
                simulation.defined_devices > simulation.devices ? (
                  <Trans>
                    {formatNumber(simulation.devices)} of {formatNumber(simulation.defined_devices)}
                  </Trans>
                ) : (
                  formatNumber(simulation.devices)
                ),
              ],
              [<Trans>Messages per second</Trans>, formatNumber(simulation.messages_per_s)],
              [
                <Trans>Duration</Trans>,
                simulation.duration_s === null ? (
                  <Trans>until it is stopped</Trans>
                ) : (
                  formatDuration(simulation.duration_s)
                ),
              ],
              [<Trans>Products</Trans>, <Products simulation={simulation} />],
              ...(run
                ? ([
                    [<Trans>Started</Trans>, <Ago ms={run.started_at_ms} />],
                    [<Trans>Started by</Trans>, run.started_by],
                  ] as [ReactNode, ReactNode][])
                : []),
            ]}
          />
        </Panel>
      </div>
      {run && run.progress.failures_by_kind.length > 0 && (
        <Panel title={<Trans>Failures</Trans>}>
          <Facts
            rows={run.progress.failures_by_kind.map(({ kind, count }) => [
              <span className="mono">{kind}</span>,
              formatNumber(count),
            ])}
          />
        </Panel>
      )}
      {run && run.conditions.length > 0 && (
        <Panel title={<Trans>Conditions</Trans>}>
          <Facts
            rows={run.conditions.map(({ phase, condition, found, holds }) => [
              <span className="mono">
                {phase}: {condition}
              </span>,
              <StateBadge health={holds ? 'good' : 'warning'}>{found}</StateBadge>,
            ])}
          />
        </Panel>
      )}
      {run && run.progress.log.length > 0 && (
        <Panel title={<Trans>Log</Trans>}>
          <ol className="simulation-log">
            {run.progress.log.map(({ at_ms, text }, index) => (
              <li key={`${at_ms} ${index}`}>
                <LiveTime ms={at_ms} /> <span>{text}</span>
              </li>
            ))}
          </ol>
        </Panel>
      )}
    </Page>
  );
}

function RunTiles({ run }: { run: SimulationRun }) {
  const { t } = useLingui();
  const { progress } = run;
  return (
    <div className="tiles" aria-live="off">
      <Tile
        label={t`Connected`}
        value={formatNumber(progress.connected)}
        unit={<Trans>of {formatNumber(progress.total)}</Trans>}
        href="/clients"
      />
      <Tile
        label={t`Messages per second`}
        value={formatNumber(progress.sent_per_s)}
        unit={<Trans>{formatNumber(progress.sent)} in total</Trans>}
      />
      <Tile label={t`Received`} value={formatNumber(progress.received)} />
      <Tile label={t`Answers`} value={formatNumber(progress.answers)} />
      <Tile
        label={t`Acknowledged, 99 %`}
        value={progress.ack_p99_ms === null ? '–' : `≤ ${formatNumber(progress.ack_p99_ms)}`}
        unit={progress.ack_p99_ms === null ? undefined : 'ms'}
      />
      <Tile label={t`Failures`} value={formatNumber(progress.failures)} />
    </div>
  );
}

/** Devices that are created or removed, as long as that lasts. */
function SetupProgress({ run }: { run: SimulationRun }) {
  const { t } = useLingui();
  const { stage, done, total } = run.progress;
  if (run.state !== 'running' || stage === 'running' || total === 0) return null;
  return (
    <Panel title={stage === 'creating' ? <Trans>Creating devices</Trans> : <Trans>Removing devices</Trans>}>
      <div className="row">
        <Progress.Root className="grow">
          <Progress.Section value={(done / total) * 100} color="tide" aria-label={t`Devices`} />
        </Progress.Root>
        <span>
          <Trans>
            {formatNumber(done)} of {formatNumber(total)}
          </Trans>
        </span>
      </div>
    </Panel>
  );
}

function Phases({ simulation }: { simulation: Simulation }) {
  const running = simulation.run?.progress.phases ?? [];
  if (running.length === 0) {
    return (
      <Text size="sm" c="dimmed">
        {simulation.phases.join(' → ')}
      </Text>
    );
  }
  return (
    <table className="simulation-phases">
      <tbody>
        {running.map((phase) => (
          <tr key={phase.name}>
            <th scope="row">{phase.name}</th>
            <td>
              <PhaseStateBadge phase={phase} />
            </td>
            <td className="simulation-phase-progress">
              <PhaseProgress phase={phase} />
            </td>
            <td className="number">
              {formatDuration(phase.elapsed_s)}
              {phase.duration_s !== null && ` / ${formatDuration(phase.duration_s)}`}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Products({ simulation }: { simulation: Simulation }) {
  if (simulation.products.length === 0) return <>–</>;
  if (!isRunning(simulation)) return <>{simulation.products.join(', ')}</>;
  return (
    <span className="row wrap">
      {simulation.products.map((product) => (
        <Link key={product} href={`/products/${encodeURIComponent(product)}`} className="link">
          {product}
        </Link>
      ))}
    </span>
  );
}

/** For what an interrupted run or `tidegate demo` has left. */
function CleanButton({ simulation }: { simulation: Simulation }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [isOpen, setOpen] = useState(false);
  const path = `${objectPath(simulationsPath, simulation.name)}/clean`;
  const clean = useChange(() => send('POST', path), [[simulationsPath]]);
  if (!mayOnNode(caller, 'operator') || isRunning(simulation) || simulation.products.length === 0) return null;
  return (
    <>
      <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setOpen(true)}>
        <Trans>Clean up</Trans>
      </Button>
      {isOpen && (
        <Confirm
          title={t`Remove what ${simulation.name} has left`}
          action={<Trans>Remove</Trans>}
          call={{ method: 'POST', path, ctl: `simulations clean ${simulation.name}` }}
          isPending={clean.isPending}
          error={clean.error}
          onClose={() => setOpen(false)}
          onConfirm={() => clean.mutate(undefined, { onSuccess: () => setOpen(false) })}
        >
          <Trans>
            Devices and objects that an interrupted run, or the same simulation outside the node, has left are deleted
            with their data. What no simulation has created is kept.
          </Trans>
        </Confirm>
      )}
    </>
  );
}
