/** Backups with telemetry and files, which the node makes and keeps while it runs. */

import { Button, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDatabaseExport } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useWholeList } from '../../api/objects';
import { formatBytes, formatTime } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { DataTable, type Column } from '../../ui/data-table';
import { downloadFrom } from '../../ui/download';
import { Panel } from '../../ui/page';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { CancelJob, JobKindName, JobProgress, jobsPath, JobStateBadge, type Job } from '../jobs/job';

type StoredBackup = Schemas['BackupInfo'];

const path = '/api/v1/backups';
const refreshMs = 2_000;
const jobKinds = ['backup', 'backup_verification'];
/** Jobs that the page names; the page of jobs lists all. */
const maxJobs = 3;

export function StoredBackups() {
  const { t } = useLingui();
  const list = useWholeList<StoredBackup>(path, { every: refreshMs });
  const jobs = useWholeList<Job>(jobsPath, { every: refreshMs });
  const [deleted, setDeleted] = useState<StoredBackup>();
  const affected = [[path], [jobsPath]];
  const create = useChange(() => send<Job>('POST', path), affected);
  const verify = useChange((id: string) => send<Job>('POST', `${objectPath(path, id)}/verify`), affected);
  const save = useChange((id: string) => downloadFrom(`${objectPath(path, id)}/content`, `${id}.tgbackup`), []);
  const shownJobs = (jobs.data ?? []).filter(({ kind }) => jobKinds.includes(kind)).slice(0, maxJobs);
  const isRunning = shownJobs.some(({ kind, state }) => kind === 'backup' && state === 'running');
  const error = create.error ?? verify.error ?? save.error;
  const columns: Column<StoredBackup>[] = [
    { id: 'id', header: t`Backup`, sort: (row) => row.id, cell: (row) => <span className="mono">{row.id}</span> },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
    {
      id: 'size',
      header: t`Size`,
      align: 'right',
      sort: (row) => row.bytes,
      cell: (row) => formatBytes(row.bytes),
    },
    {
      id: 'action',
      header: t`Action`,
      cell: (row) => (
        <span className="row">
          <Button
            size="compact-xs"
            variant="default"
            loading={save.isPending && save.variables === row.id}
            onClick={() => save.mutate(row.id)}
          >
            <Trans>Download</Trans>
          </Button>
          <Button
            size="compact-xs"
            variant="default"
            loading={verify.isPending && verify.variables === row.id}
            onClick={() => verify.mutate(row.id)}
          >
            <Trans>Verify</Trans>
          </Button>
          <Button size="compact-xs" variant="default" onClick={() => setDeleted(row)}>
            <Trans>Delete</Trans>
          </Button>
        </span>
      ),
    },
  ];
  const begin = (
    <Button
      leftSection={<IconDatabaseExport size={14} />}
      loading={create.isPending}
      disabled={isRunning}
      onClick={() => create.mutate(undefined)}
    >
      <Trans>Back up now</Trans>
    </Button>
  );
  return (
    <Panel title={<Trans>Backups on the node</Trans>} actions={begin}>
      <Text size="sm" mb="sm">
        <Trans>
          A backup contains configuration, devices, telemetry, files, retained messages and the audit log, and is made
          while the node runs. Restore it to an empty data directory. It contains password hashes and credentials of
          connectors.
        </Trans>
      </Text>
      {error && (
        <Text size="sm" c="var(--tg-critical)" role="alert" mb="sm">
          {error.message}
        </Text>
      )}
      {shownJobs.length > 0 && (
        <ul className="plain-list backup-jobs">
          {shownJobs.map((job) => (
            <li key={job.id}>
              <span className="ellipsis">
                <JobKindName kind={job.kind} /> <span className="dimmed mono">{job.subject}</span>
              </span>
              <JobProgress job={job} />
              <span className="row">
                <JobStateBadge job={job} />
                <CancelJob job={job} />
              </span>
              {job.error && <span className="state-critical">{job.error}</span>}
            </li>
          ))}
        </ul>
      )}
      <DataTable
        name="backups"
        label={t`Backups on the node`}
        columns={columns}
        rows={list.data}
        rowKey={(row) => row.id}
        error={list.error}
        retry={() => void list.refetch()}
        initialOrder="-created"
        height={320}
        toolbar={<ShowCall method="POST" path={path} ctl="backups create" />}
        empty={
          <EmptyState title={<Trans>No backups on this node</Trans>}>
            <Trans>Keep backups on another machine: download them, and verify them from time to time.</Trans>
          </EmptyState>
        }
      />
      {deleted && <DeleteBackup backup={deleted} onClose={() => setDeleted(undefined)} />}
    </Panel>
  );
}

function DeleteBackup({ backup, onClose }: { backup: StoredBackup; onClose: () => void }) {
  const { t } = useLingui();
  const { id } = backup;
  return (
    <ConfirmDeletion
      title={<Trans>Delete the backup {id}?</Trans>}
      action={<Trans>Delete the backup</Trans>}
      call={{ path: objectPath(path, id), ctl: `backups delete ${quoted(id)}` }}
      onClose={onClose}
      invalidates={[[path]]}
      message={t`${id} was deleted.`}
    >
      <Text size="sm">
        <Trans>
          This deletes the backup of {formatTime(backup.created_at_ms)} ({formatBytes(backup.bytes)}) from the node.
        </Trans>
      </Text>
    </ConfirmDeletion>
  );
}
