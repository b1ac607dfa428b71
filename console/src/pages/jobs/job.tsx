import { Button, Progress, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerStop } from '@tabler/icons-react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayInNamespace, mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatNumber } from '../../format';
import { Facts } from '../../ui/page';
import { StateBadge, type Health } from '../../ui/state-badge';

export type Job = Schemas['Job'];

export const jobsPath = '/api/v1/jobs';

const health: Record<Job['state'], Health> = {
  running: 'unknown',
  done: 'good',
  cancelled: 'warning',
  failed: 'critical',
};

export function JobStateBadge({ job }: { job: Job }) {
  const isPartial = job.state === 'done' && job.failed > 0;
  return (
    <StateBadge health={isPartial ? 'warning' : health[job.state]}>
      <JobStateName job={job} />
    </StateBadge>
  );
}

function JobStateName({ job }: { job: Job }) {
  switch (job.state) {
    case 'running':
      return job.is_cancel_requested ? <Trans>is being cancelled</Trans> : <Trans>running</Trans>;
    case 'done':
      return job.failed > 0 ? <Trans>done, with failures</Trans> : <Trans>done</Trans>;
    case 'cancelled':
      return <Trans>cancelled</Trans>;
    default:
      return <Trans>failed</Trans>;
  }
}

/** What a job does. */
export function JobKindName({ kind }: { kind: string }) {
  switch (kind) {
    case 'group_command':
      return <Trans>Command to a group</Trans>;
    case 'backup':
      return <Trans>Backup</Trans>;
    case 'backup_verification':
      return <Trans>Verification of a backup</Trans>;
    case 'device_import':
      return <Trans>Import of devices</Trans>;
    case 'telemetry_import':
      return <Trans>Import of telemetry</Trans>;
    case 'device_export':
      return <Trans>Export of devices</Trans>;
    case 'telemetry_export':
      return <Trans>Export of telemetry</Trans>;
    case 'simulation':
      return <Trans>Simulation</Trans>;
    case 'simulation_removal':
      return <Trans>Removal of a simulation</Trans>;
    default:
      return <>{kind}</>;
  }
}

/** How many of its items a job has processed, and how many of them without success. */
export function JobProgress({ job }: { job: Job }) {
  const { t } = useLingui();
  const percent = (count: number) => (job.total ? (count / job.total) * 100 : job.state === 'running' ? 0 : 100);
  const total = job.total;
  // The items of backups are bytes.
  const amount = job.kind.startsWith('backup') ? formatBytes : formatNumber;
  return (
    <span className="row">
      <Progress.Root className="grow" miw={60}>
        <Progress.Section value={percent(job.done - job.failed)} aria-label={t`Succeeded`} color="tide" />
        <Progress.Section value={percent(job.failed)} aria-label={t`Failed`} color="red.7" />
      </Progress.Root>
      <span aria-live="polite">
        {total === null ? (
          amount(job.done)
        ) : (
          <Trans>
            {amount(job.done)} of {amount(total)}
          </Trans>
        )}
        {job.failed > 0 && (
          <>
            {', '}
            <Trans>{formatNumber(job.failed)} failed</Trans>
          </>
        )}
      </span>
    </span>
  );
}

/** For those who may cancel the job, as long as it runs. */
export function CancelJob({ job }: { job: Job }) {
  const caller = useCaller();
  const cancel = useChange(() => send<Job>('POST', `${objectPath(jobsPath, job.id)}/cancel`), [[jobsPath]]);
  const mayCancel =
    job.namespace === null ? mayOnNode(caller, 'operator') : mayInNamespace(caller, 'operator', job.namespace);
  if (job.state !== 'running' || !mayCancel) return null;
  return (
    <Button
      size="compact-xs"
      variant="default"
      leftSection={<IconPlayerStop size={12} />}
      disabled={job.is_cancel_requested}
      loading={cancel.isPending}
      onClick={() => cancel.mutate(undefined)}
    >
      <Trans>Cancel</Trans>
    </Button>
  );
}

/** Why items of a job had no success; the node keeps the first ones. */
export function JobFailures({ job }: { job: Job }) {
  return (
    <div>
      <Text size="sm" fw={600} mb="xs">
        {job.failed > job.failures.length ? (
          <Trans>The first {job.failures.length} failures</Trans>
        ) : (
          <Trans>Failures</Trans>
        )}
      </Text>
      <Facts rows={job.failures.map(({ subject, reason }) => [<span className="mono">{subject}</span>, reason])} />
    </div>
  );
}
