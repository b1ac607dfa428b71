import { ActionIcon, Button, Group, Progress, Select, Stack, Text, Title, Tooltip } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconRefresh, IconUpload, IconX } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useList } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatBytes, formatNumber } from '../../format';
import { StateBadge, type Health } from '../../ui/state-badge';
import { Ago } from '../../ui/time';
import { filesPath, type FileInfo } from './file-list';

type FileExport = Schemas['FileExport'];
type Sink = { name: string; format?: string };

const healths: Record<FileExport['state'], Health> = {
  waiting: 'unknown',
  running: 'good',
  complete: 'good',
  failed: 'critical',
};

const ExportStateName = ({ state }: { state: FileExport['state'] }) => {
  switch (state) {
    case 'waiting':
      return <Trans>waiting</Trans>;
    case 'running':
      return <Trans>running</Trans>;
    case 'complete':
      return <Trans>exported</Trans>;
    case 'failed':
      return <Trans>failed</Trans>;
  }
};

/** The state of an export, for lists: of several, the worst. */
export function ExportSummary({ file }: { file: FileInfo }) {
  const order: FileExport['state'][] = ['failed', 'waiting', 'running', 'complete'];
  const state = order.find((wanted) => file.exports.some((known) => known.state === wanted));
  if (state === undefined) return <>–</>;
  return (
    <StateBadge health={healths[state]}>
      <ExportStateName state={state} />
    </StateBadge>
  );
}

/** The exports of a file by sinks, and another one. */
export function FileExports({ file }: { file: FileInfo }) {
  const { t } = useLingui();
  const caller = useCaller();
  const mayChange = mayInNamespace(caller, 'operator', file.owner.namespace);
  const [chosen, setChosen] = useState<string | null>(null);
  const change = useChange(
    ({ sink, method }: { sink: string; method: 'POST' | 'DELETE' }) =>
      send(method, `${objectPath(filesPath, file.id)}/exports/${encodeURIComponent(sink)}`),
    [[filesPath]],
  );
  const run = (sink: string, method: 'POST' | 'DELETE') =>
    change.mutate(
      { sink, method },
      {
        onSuccess: () =>
          notifications.show({
            message: method === 'POST' ? t`The export to ${sink} is queued.` : t`The export to ${sink} was removed.`,
          }),
        onError: (error) => notifications.show({ color: 'red', message: error.message }),
      },
    );
  return (
    <Stack gap="xs">
      <Title order={3} size="h5">
        <Trans>Exports</Trans>
      </Title>
      {file.exports.length === 0 && (
        <Text size="sm" c="dimmed">
          <Trans>This file was not exported. A rule on $events/file/received exports files when they arrive.</Trans>
        </Text>
      )}
      {file.exports.map((known) => (
        <ExportRow
          key={known.sink}
          known={known}
          size={file.size ?? 0}
          mayChange={mayChange}
          isPending={change.isPending}
          onRepeat={() => run(known.sink, 'POST')}
          onRemove={() => run(known.sink, 'DELETE')}
        />
      ))}
      {mayChange && caller.role !== null && (
        <NewExport
          chosen={chosen}
          onChoose={setChosen}
          isPending={change.isPending}
          taken={file.exports.map(({ sink }) => sink)}
          onExport={(sink) => {
            run(sink, 'POST');
            setChosen(null);
          }}
        />
      )}
    </Stack>
  );
}

function ExportRow({
  known,
  size,
  mayChange,
  isPending,
  onRepeat,
  onRemove,
}: {
  known: FileExport;
  size: number;
  mayChange: boolean;
  isPending: boolean;
  onRepeat: () => void;
  onRemove: () => void;
}) {
  const { t } = useLingui();
  const isActive = known.state === 'waiting' || known.state === 'running';
  const share = size === 0 ? 100 : (known.sent_bytes / size) * 100;
  return (
    <div className="upload">
      <div className="row">
        <strong className="grow ellipsis">{known.sink}</strong>
        <StateBadge health={known.error !== null && isActive ? 'warning' : healths[known.state]}>
          <ExportStateName state={known.state} />
        </StateBadge>
        {mayChange && !isActive && (
          <Tooltip label={t`Export again`}>
            <ActionIcon aria-label={t`Export again to ${known.sink}`} disabled={isPending} onClick={onRepeat}>
              <IconRefresh size={15} />
            </ActionIcon>
          </Tooltip>
        )}
        {mayChange && (
          <Tooltip label={isActive ? t`Cancel` : t`Remove from this list`}>
            <ActionIcon
              aria-label={isActive ? t`Cancel the export to ${known.sink}` : t`Remove the export to ${known.sink}`}
              disabled={isPending}
              onClick={onRemove}
            >
              <IconX size={15} />
            </ActionIcon>
          </Tooltip>
        )}
      </div>
      {isActive && <Progress value={share} aria-label={known.sink} />}
      <div className="field-help">
        {isActive && (
          <>
            {formatBytes(known.sent_bytes)} / {formatBytes(size)} ({formatNumber(share)} %) ·{' '}
          </>
        )}
        <Trans>attempt {known.attempts}</Trans> · <Ago ms={known.updated_at_ms} />
      </div>
      {known.location !== null && (
        <div className="field-help mono" style={{ overflowWrap: 'anywhere' }}>
          {known.location}
        </div>
      )}
      {known.error !== null && (
        <Text size="sm" c={known.state === 'failed' ? 'var(--tg-critical)' : 'var(--tg-warning)'} role="status">
          {known.error}
        </Text>
      )}
    </div>
  );
}

function NewExport({
  chosen,
  taken,
  isPending,
  onChoose,
  onExport,
}: {
  chosen: string | null;
  taken: string[];
  isPending: boolean;
  onChoose: (sink: string | null) => void;
  onExport: (sink: string) => void;
}) {
  const { t } = useLingui();
  const sinks = useList<Sink>('/api/v1/sinks', {}, { pageSize: 1000 });
  const names = (sinks.rows ?? []).filter(({ format, name }) => format === 'content' && !taken.includes(name));
  if (names.length === 0) return null;
  return (
    <Group gap="xs" align="flex-end">
      <Select
        label={t`Export to`}
        w={220}
        searchable
        value={chosen}
        onChange={onChoose}
        data={names.map(({ name }) => name)}
      />
      <Button
        variant="default"
        leftSection={<IconUpload size={14} />}
        disabled={chosen === null}
        loading={isPending}
        onClick={() => chosen !== null && onExport(chosen)}
      >
        <Trans>Export</Trans>
      </Button>
    </Group>
  );
}
