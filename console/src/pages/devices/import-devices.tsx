import { Button, FileInput, Group, Modal, Stack, Switch, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconFileImport } from '@tabler/icons-react';
import { useEffect, useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { problemOf, queryClient, useChange } from '../../api/client';
import { useObject, withQuery } from '../../api/objects';
import { authorizedFetch, useCaller } from '../../api/session';
import { formatBytes } from '../../format';
import { CopyText } from '../../ui/copy';
import { NamespaceSelect } from '../../ui/object-list';
import { quoted, ShowCall } from '../../ui/show-call';
import { ErrorState, Loading } from '../../ui/states';
import { CancelJob, JobFailures, JobProgress, jobsPath, JobStateBadge, type Job } from '../jobs/job';

const refreshMs = 500;
const example = 'id,product,name,token\nmeter-1,meter,Meter 1,4fzZqG7uXw2TfJkPq9Lb';

function mediaType(file: File | null): string {
  return file === null || /\.csv$/i.test(file.name) ? 'text/csv' : 'application/x-ndjson';
}

/** Creates devices from the lines of a file, and shows how far it is and which lines were rejected. */
export function ImportDevices({ onClose }: { onClose: () => void }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [file, setFile] = useState<File | null>(null);
  const [createsOnly, setCreatesOnly] = useState(false);
  const [namespace, setNamespace] = useState('');
  const path = withQuery('/api/v1/imports', {
    kind: 'devices',
    create_only: createsOnly || undefined,
    namespace,
  });
  const start = useChange(
    async (chosen: File) => {
      const response = await authorizedFetch(path, {
        method: 'POST',
        headers: { 'content-type': mediaType(chosen) },
        body: chosen,
      });
      if (!response.ok) throw await problemOf(response);
      return (await response.json()) as Job;
    },
    [[jobsPath]],
  );
  const name = quoted(file?.name ?? 'fleet.csv');
  const command =
    createsOnly || namespace !== ''
      ? `curl -u ID:SECRET -H 'Content-Type: ${mediaType(file)}' --data-binary @${name} ${quoted(location.origin + path)}`
      : `tidegate ctl jobs import devices ${name}`;
  if (start.data) return <Importing id={start.data.id} onClose={onClose} />;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (file) start.mutate(file);
  };
  return (
    <Modal opened onClose={onClose} title={<Trans>Import devices</Trans>} size="lg">
      <form onSubmit={submit}>
        <Stack gap="sm">
          <Text size="sm">
            <Trans>
              One device per line: CSV with a header line, or lines of JSON as in an export. Invalid lines are listed,
              and do not stop the others.
            </Trans>
          </Text>
          <CopyText text={example} />
          <FileInput
            label={t`File`}
            placeholder={t`Choose a file (.csv or .jsonl)`}
            description={file ? formatBytes(file.size) : t`The devices' products have to exist.`}
            accept=".csv,.jsonl,.ndjson"
            value={file}
            onChange={setFile}
            data-autofocus
          />
          {caller.role === null && caller.namespaces.length > 1 && (
            <NamespaceSelect value={namespace} onChange={setNamespace} />
          )}
          <Switch
            label={t`Only add devices that do not exist`}
            description={t`Otherwise, devices that exist are replaced.`}
            checked={createsOnly}
            onChange={(event) => setCreatesOnly(event.currentTarget.checked)}
          />
          {start.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {start.error.message}
            </Text>
          )}
          <Group justify="space-between">
            <ShowCall command={command} />
            <Button
              type="submit"
              leftSection={<IconFileImport size={14} />}
              disabled={file === null}
              loading={start.isPending}
            >
              <Trans>Import</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Importing({ id, onClose }: { id: string; onClose: () => void }) {
  const job = useObject<Job>(jobsPath, id, { every: refreshMs });
  const hasEnded = job.data !== undefined && job.data.state !== 'running';
  useEffect(() => {
    if (!hasEnded) return;
    for (const key of ['devices', 'device-counts', 'products']) void queryClient.invalidateQueries({ queryKey: [key] });
  }, [hasEnded]);
  return (
    <Modal opened onClose={onClose} title={<Trans>Import devices</Trans>} size="lg">
      {job.data ? (
        <Stack gap="sm">
          <Group justify="space-between">
            <JobStateBadge job={job.data} />
            <CancelJob job={job.data} />
          </Group>
          <JobProgress job={job.data} />
          {job.data.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {job.data.error}
            </Text>
          )}
          {job.data.failures.length > 0 && <JobFailures job={job.data} />}
          <Group justify="space-between">
            <Text size="sm" c="dimmed">
              {hasEnded ? null : (
                <Trans>
                  The node continues when this window is closed; see <Link href="/jobs">Jobs</Link>.
                </Trans>
              )}
            </Text>
            <Button onClick={onClose} variant={hasEnded ? 'filled' : 'default'}>
              <Trans>Close</Trans>
            </Button>
          </Group>
        </Stack>
      ) : job.error ? (
        <ErrorState error={job.error} retry={() => void job.refetch()} />
      ) : (
        <Loading lines={3} />
      )}
    </Modal>
  );
}
