import { Button, FileButton, Group, Stack, Switch, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconUpload } from '@tabler/icons-react';
import { useState } from 'react';
import { problemOf, queryClient, useChange, type Schemas } from '../../api/client';
import { authorizedFetch } from '../../api/session';
import { downloadFrom } from '../../ui/download';
import { formatBytes, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { StoredBackups } from './backups';

const mediaType = 'application/x-ndjson';

/** Backups of everything, and the configuration objects and devices as a file. */
export function Backup() {
  return (
    <div className="page">
      <StoredBackups />
      <div className="grid">
        <Save />
        <Restore />
      </div>
    </div>
  );
}

function Save() {
  const save = useChange(() => {
    const time = new Date().toISOString().slice(0, 19).replaceAll(':', '-');
    return downloadFrom('/api/v1/backup', `tidegate-backup-${time}.jsonl`);
  }, []);
  return (
    <Panel title={<Trans>Save the configuration</Trans>}>
      <Stack gap="sm">
        <Text size="sm">
          <Trans>
            The file contains all configuration objects and devices, but no telemetry. It contains password hashes, keys
            and passwords of connectors: keep it where you keep secrets.
          </Trans>
        </Text>
        {save.error && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {save.error.message}
          </Text>
        )}
        <Group justify="space-between">
          <ShowCall method="GET" path="/api/v1/backup" ctl="backup backup.jsonl" />
          <Button
            leftSection={<IconDownload size={14} />}
            loading={save.isPending}
            onClick={() => save.mutate(undefined)}
          >
            <Trans>Download the configuration</Trans>
          </Button>
        </Group>
      </Stack>
    </Panel>
  );
}

function Restore() {
  const { t } = useLingui();
  const [file, setFile] = useState<File | null>(null);
  const [replaces, setReplaces] = useState(false);
  const path = `/api/v1/restore${replaces ? '?replace=true' : ''}`;
  const restore = useChange(async (chosen: File) => {
    const response = await authorizedFetch(path, {
      method: 'POST',
      headers: { 'content-type': mediaType },
      body: chosen,
    });
    if (!response.ok) throw await problemOf(response);
    return (await response.json()) as Schemas['RestoreSummary'];
  }, []);
  return (
    <Panel title={<Trans>Restore the configuration</Trans>}>
      <Stack gap="sm">
        <Text size="sm">
          <Trans>Writes the objects of a backup to this node. Objects with the same id are replaced.</Trans>
        </Text>
        <Switch
          label={t`Also remove objects that the backup does not contain`}
          checked={replaces}
          onChange={(event) => setReplaces(event.currentTarget.checked)}
        />
        {restore.data && (
          <Text size="sm" role="status">
            <Trans>
              {formatNumber(restore.data.written)} objects were written, {formatNumber(restore.data.removed)} removed.
            </Trans>
          </Text>
        )}
        <Group justify="space-between">
          <ShowCall method="POST" path={path} ctl={`restore backup.jsonl${replaces ? ' --replace' : ''}`} />
          <FileButton accept=".jsonl,.ndjson,.json" onChange={setFile}>
            {(props) => (
              <Button {...props} variant="default" leftSection={<IconUpload size={14} />}>
                <Trans>Choose a file</Trans>
              </Button>
            )}
          </FileButton>
        </Group>
      </Stack>
      {file && (
        <Confirm
          title={<Trans>Restore {file.name}?</Trans>}
          action={<Trans>Restore</Trans>}
          isPending={restore.isPending}
          error={restore.error}
          onClose={() => setFile(null)}
          onConfirm={() =>
            restore.mutate(file, {
              onSuccess: () => {
                setFile(null);
                notifications.show({ message: t`The backup was restored.` });
                void queryClient.invalidateQueries();
              },
            })
          }
        >
          <Text size="sm">
            {replaces ? (
              <Trans>
                This replaces all objects of the node by those of the file ({formatBytes(file.size)}). Objects that it
                does not contain are deleted, people and devices too.
              </Trans>
            ) : (
              <Trans>
                This writes the objects of the file ({formatBytes(file.size)}). Objects with the same id are
                overwritten.
              </Trans>
            )}
          </Text>
        </Confirm>
      )}
    </Panel>
  );
}
