import { Drawer, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import { objectPath, useObject, useWholeList } from '../../api/objects';
import { formatDuration } from '../../format';
import { DataTable, type Column } from '../../ui/data-table';
import { Facts, Page } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { CancelJob, JobFailures, JobKindName, JobProgress, jobsPath, JobStateBadge, type Job } from './job';

const refreshMs = 1_500;

/** Work that outlives its request. */
export default function JobsPage() {
  const { t } = useLingui();
  const [opened, setOpened] = useUrlState('job');
  const list = useWholeList<Job>(jobsPath, { every: refreshMs });
  const href = ({ id }: Job) => `/jobs?job=${encodeURIComponent(id)}`;
  const columns: Column<Job>[] = [
    {
      id: 'kind',
      header: t`Job`,
      sort: (job) => job.kind,
      cell: (job) => (
        <Link href={href(job)} className="link">
          <JobKindName kind={job.kind} />
        </Link>
      ),
    },
    { id: 'subject', header: t`Subject`, sort: (job) => job.subject, cell: (job) => job.subject },
    { id: 'state', header: t`State`, sort: (job) => job.state, cell: (job) => <JobStateBadge job={job} /> },
    { id: 'progress', header: t`Progress`, width: 260, cell: (job) => <JobProgress job={job} /> },
    {
      id: 'started',
      header: t`Started`,
      sort: (job) => job.started_at_ms,
      cell: (job) => <Ago ms={job.started_at_ms} />,
    },
    { id: 'duration', header: t`Duration`, align: 'right', cell: durationOf },
    { id: 'by', header: t`Started by`, sort: (job) => job.created_by, cell: (job) => job.created_by },
    {
      id: 'namespace',
      header: t`Namespace`,
      sort: (job) => job.namespace,
      cell: (job) => job.namespace ?? '–',
      isHidden: true,
    },
    {
      id: 'action',
      header: t`Action`,
      cell: (job) => <CancelJob job={job} />,
    },
  ];
  return (
    <Page
      title={t`Jobs`}
      description={
        <Trans>Work that continues when its page is left. Jobs are kept until the node stops, at most 200.</Trans>
      }
      actions={<ShowCall method="GET" path={jobsPath} ctl="jobs list" />}
    >
      <DataTable
        name="jobs"
        label={t`Jobs`}
        columns={columns}
        rows={list.data}
        rowKey={(job) => job.id}
        rowHref={href}
        error={list.error}
        retry={() => void list.refetch()}
        empty={
          <EmptyState title={<Trans>No jobs since the node started</Trans>}>
            <Trans>Commands to groups, imports, exports and backups are jobs, with their progress.</Trans>
          </EmptyState>
        }
      />
      {opened !== '' && <JobDrawer id={opened} onClose={() => setOpened('')} />}
    </Page>
  );
}

function durationOf(job: Job) {
  return job.ended_at_ms == null ? '–' : formatDuration((job.ended_at_ms - job.started_at_ms) / 1000);
}

function JobDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  const job = useObject<Job>(jobsPath, id, { every: refreshMs });
  return (
    <Drawer opened onClose={onClose} position="right" size="md" title={<span className="mono">{id}</span>}>
      {job.data ? (
        <Stack gap="md">
          <JobProgress job={job.data} />
          <Facts
            rows={[
              [<Trans>Job</Trans>, <JobKindName kind={job.data.kind} />],
              [<Trans>Subject</Trans>, <Subject job={job.data} />],
              [<Trans>State</Trans>, <JobStateBadge job={job.data} />],
              [<Trans>Started</Trans>, <Ago ms={job.data.started_at_ms} />],
              [<Trans>Duration</Trans>, durationOf(job.data)],
              [<Trans>Started by</Trans>, job.data.created_by],
              [<Trans>Namespace</Trans>, job.data.namespace ?? '–'],
            ]}
          />
          {job.data.error && (
            <Text size="sm" c="var(--tg-critical)">
              {job.data.error}
            </Text>
          )}
          {job.data.failures.length > 0 && <JobFailures job={job.data} />}
          <div className="drawer-footer">
            <ShowCall method="GET" path={objectPath(jobsPath, id)} ctl={`jobs show ${id}`} />
            <CancelJob job={job.data} />
          </div>
        </Stack>
      ) : job.error ? (
        <ErrorState error={job.error} retry={() => void job.refetch()} />
      ) : (
        <Loading />
      )}
    </Drawer>
  );
}

function Subject({ job }: { job: Job }) {
  if (job.kind.startsWith('simulation')) {
    return (
      <Link href={`/simulations/${encodeURIComponent(job.subject)}`} className="link">
        {job.subject}
      </Link>
    );
  }
  if (job.kind !== 'group_command') return <>{job.subject}</>;
  const query = new URLSearchParams({ tab: 'command', batch: job.id });
  return (
    <Link href={`/groups/${encodeURIComponent(job.subject)}?${query.toString()}`} className="link">
      {job.subject}
    </Link>
  );
}
