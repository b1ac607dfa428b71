import { Button, Group, SegmentedControl, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { send } from '../../api/objects';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { ErrorState, Loading } from '../../ui/states';

const path = '/api/v1/log-level';
const levels = ['error', 'warn', 'info', 'debug', 'trace'];

/** How much the node logs. */
export function LogLevel() {
  const current = useRead([path], (signal) => send<Schemas['LogLevel']>('GET', path, { signal }));
  if (current.error && !current.data) {
    return <ErrorState error={current.error} retry={() => void current.refetch()} />;
  }
  if (!current.data) return <Loading />;
  return <LevelForm key={current.data.level} current={current.data.level} />;
}

function LevelForm({ current }: { current: string }) {
  const { t } = useLingui();
  const [level, setLevel] = useState(current);
  const save = useChange(() => send('PUT', path, { body: { level } }), [[path]]);
  const isEmpty = level.trim() === '';
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isEmpty) return;
    save.mutate(undefined, { onSuccess: () => notifications.show({ message: t`The log level is ${level} now.` }) });
  };
  return (
    <Panel title={<Trans>Log level</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm" maw={520}>
          <Text size="sm" c="dimmed">
            <Trans>The change is effective at once, until the node stops. "debug" names each rejected client.</Trans>
          </Text>
          <SegmentedControl
            aria-label={t`Log level`}
            size="xs"
            value={levels.includes(level) ? level : ''}
            onChange={setLevel}
            data={levels}
          />
          <TextInput
            label={t`Filter`}
            description={t`A level, and levels of parts of the program: info,broker=debug`}
            classNames={{ input: 'mono' }}
            value={level}
            error={isEmpty ? t`Required` : save.error?.message}
            onChange={(event) => setLevel(event.currentTarget.value)}
          />
          <Group justify="space-between">
            <ShowCall method="PUT" path={path} body={{ level }} ctl={`log-level ${level}`} />
            <Button type="submit" loading={save.isPending} disabled={isEmpty || level === current}>
              <Trans>Change</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Panel>
  );
}
