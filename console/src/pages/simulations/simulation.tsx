import { Button, NumberInput, Progress, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPlay, IconPlayerStop } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { StateBadge, type Health } from '../../ui/state-badge';
import { describe } from './descriptions';

export type Simulation = Schemas['Simulation'];
export type SimulationRun = NonNullable<Simulation['run']>;

export const simulationsPath = '/api/v1/simulations';
/** A run reports four times per second; people read no faster than this. */
export const refreshMs = 1_000;

const health: Record<SimulationRun['state'], Health> = {
  running: 'good',
  done: 'good',
  cancelled: 'unknown',
  failed: 'critical',
};

export const isRunning = ({ run }: Simulation) => run?.state === 'running';

/** Conditions of a run that do not hold. */
export const brokenConditions = (run: SimulationRun) => run.conditions.filter(({ holds }) => !holds);

export function SimulationStateBadge({ simulation: { run } }: { simulation: Simulation }) {
  if (!run) return <>–</>;
  const isBroken = run.state === 'done' && brokenConditions(run).length > 0;
  return (
    <StateBadge health={isBroken ? 'warning' : health[run.state]}>
      <RunStateName run={run} />
    </StateBadge>
  );
}

function RunStateName({ run }: { run: SimulationRun }) {
  switch (run.state) {
    case 'running':
      if (run.action === 'clean' || run.progress.stage === 'removing') return <Trans>removes its devices</Trans>;
      if (run.is_stop_requested) return <Trans>is being stopped</Trans>;
      return run.progress.stage === 'creating' ? <Trans>creates its devices</Trans> : <Trans>running</Trans>;
    case 'done':
      if (run.action === 'clean') return <Trans>cleaned up</Trans>;
      return brokenConditions(run).length > 0 ? <Trans>done, conditions do not hold</Trans> : <Trans>done</Trans>;
    case 'cancelled':
      return <Trans>stopped</Trans>;
    default:
      return <Trans>failed</Trans>;
  }
}

const phaseHealth = { waiting: 'unknown', running: 'good', done: 'good' } as const;

type Phase = SimulationRun['progress']['phases'][number];

export function PhaseStateBadge({ phase }: { phase: Phase }) {
  return (
    <StateBadge health={phaseHealth[phase.state]}>
      {phase.state === 'waiting' ? (
        <Trans>waiting</Trans>
      ) : phase.state === 'running' ? (
        <Trans>running</Trans>
      ) : (
        <Trans>done</Trans>
      )}
    </StateBadge>
  );
}

export function PhaseProgress({ phase }: { phase: Phase }) {
  const { t } = useLingui();
  if (phase.state === 'running' && phase.progress === null) return <Trans>until it is stopped</Trans>;
  const part = phase.state === 'done' ? 1 : (phase.progress ?? 0);
  return (
    <Progress.Root className="grow" miw={60}>
      <Progress.Section value={part * 100} color="tide" aria-label={t`Progress of ${phase.name}`} />
    </Progress.Root>
  );
}

/** Starts or stops a simulation, for those who may. */
export function RunButton({ simulation, size }: { simulation: Simulation; size?: 'compact-xs' }) {
  const caller = useCaller();
  const [isOpen, setOpen] = useState(false);
  const path = objectPath(simulationsPath, simulation.name);
  const stop = useChange(() => send('POST', `${path}/stop`), [[simulationsPath]]);
  if (!mayOnNode(caller, 'operator')) return null;
  if (isRunning(simulation)) {
    return (
      <Button
        size={size}
        variant="default"
        leftSection={<IconPlayerStop size={12} />}
        disabled={simulation.run?.is_stop_requested}
        loading={stop.isPending}
        onClick={() => stop.mutate(undefined)}
      >
        <Trans>Stop</Trans>
      </Button>
    );
  }
  return (
    <>
      <Button
        size={size}
        variant={size ? 'default' : 'filled'}
        leftSection={<IconPlayerPlay size={12} />}
        disabled={simulation.unavailable !== null}
        title={simulation.unavailable ?? undefined}
        onClick={() => setOpen(true)}
      >
        <Trans>Start</Trans>
      </Button>
      {isOpen && <StartDialog simulation={simulation} onClose={() => setOpen(false)} />}
    </>
  );
}

function StartDialog({ simulation, onClose }: { simulation: Simulation; onClose: () => void }) {
  const { t, i18n } = useLingui();
  const [devices, setDevices] = useState<number | string>(simulation.devices);
  const path = `${objectPath(simulationsPath, simulation.name)}/start`;
  const count = Number(devices);
  const isValid = Number.isInteger(count) && count >= 1 && count <= simulation.devices;
  const body = { devices: isValid ? count : simulation.devices };
  const start = useChange(() => send('POST', path, { body }), [[simulationsPath]]);
  const products = simulation.products;
  return (
    <Confirm
      title={t`Start ${simulation.name}`}
      action={<Trans>Start</Trans>}
      call={{ method: 'POST', path, body, ctl: `simulations start ${simulation.name} --devices ${body.devices}` }}
      isSafe
      isInvalid={!isValid}
      isPending={start.isPending}
      error={start.error}
      onClose={onClose}
      onConfirm={() => start.mutate(undefined, { onSuccess: onClose })}
    >
      <Stack gap="sm">
        <Text size="sm">{describe(i18n, simulation)}</Text>
        <NumberInput
          label={t`Devices`}
          description={
            simulation.defined_devices > simulation.devices
              ? t`Of ${formatNumber(simulation.defined_devices)}; this node simulates at most ${formatNumber(simulation.devices)} of them`
              : undefined
          }
          min={1}
          max={simulation.devices}
          allowDecimal={false}
          value={devices}
          onChange={setDevices}
          error={isValid ? undefined : t`Expected 1 to ${formatNumber(simulation.devices)}`}
        />
        <Text size="sm" c="dimmed">
          {products.length > 0 ? (
            <Trans>
              The node creates {products.join(', ')} with these devices, and removes them with their data at the end.
            </Trans>
          ) : (
            <Trans>The devices connect without credentials, and belong to no product.</Trans>
          )}
        </Text>
      </Stack>
    </Confirm>
  );
}
