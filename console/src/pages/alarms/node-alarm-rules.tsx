import { Alert, Button, Stack, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { IconRestore } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { ifMatch, readVersioned, send, type Versioned } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import type { ReadValue } from '../../ui/conditional-save';
import { Confirm } from '../../ui/confirm';
import { ShowCall } from '../../ui/show-call';
import { AlarmRuleList } from './alarm-rule-editor';
import type { AlarmRule } from './condition';

const path = '/api/v1/node-alarm-rules';

type StoredRules = Versioned<Schemas['NodeAlarmRules']>;

const readRules = (signal?: AbortSignal): Promise<StoredRules> => readVersioned(path, signal);

/** Metrics of the node that its alarm rules can use. */
const keys = [
  'throughput_drop_percent',
  'latency_mean_ms',
  'latency_p95_ms',
  'success_percent',
  'memory_mb',
  'mailbox_backlog',
  'rule_success_percent',
  'rule_latency_ms',
  'rule_queue',
  'damaged_files',
  'damaged_telemetry_files',
];

/** What the node raises alarms about itself for. */
export function NodeAlarmRules() {
  const caller = useCaller();
  const mayChange = mayOnNode(caller, 'operator');
  const [isAsking, setAsking] = useState(false);
  const read = useRead([path], readRules);
  const rules = read.data?.value;
  const save = useChange(
    ({ over, next }: { over: StoredRules; next: AlarmRule[] }) =>
      send('PUT', path, { body: { rules: next }, headers: ifMatch(over) }),
    [[path]],
  );
  const stored = (version: StoredRules): ReadValue<AlarmRule[]> => ({
    value: version.value.rules as unknown as AlarmRule[],
    save: (next) => save.mutateAsync({ over: version, next }),
  });
  const reset = useChange(() => send('DELETE', path), [[path]]);
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        <Trans>
          The node watches its own metrics. Its alarms appear in the list with the device "this node", and notifications
          can send them.
        </Trans>
      </Text>
      {rules?.enabled === false && (
        <Alert color="yellow" variant="light">
          <Trans>These rules are not evaluated: the setting alarms.node_alarms_enabled is false.</Trans>
        </Alert>
      )}
      <AlarmRuleList
        stored={read.data && stored(read.data)}
        read={async () => stored(await readRules())}
        error={read.error}
        keys={keys}
        mayChange={mayChange}
        empty={<Trans>The node raises no alarms about itself.</Trans>}
        toolbar={
          <>
            <ShowCall method="GET" path={path} ctl="node-alarm-rules show" />
            {mayChange && rules?.is_changed && (
              <Button variant="default" leftSection={<IconRestore size={14} />} onClick={() => setAsking(true)}>
                <Trans>Restore the defaults</Trans>
              </Button>
            )}
          </>
        }
      />
      {isAsking && (
        <Confirm
          title={<Trans>Restore the default rules?</Trans>}
          action={<Trans>Restore</Trans>}
          call={{ method: 'DELETE', path, ctl: 'node-alarm-rules reset' }}
          isPending={reset.isPending}
          error={reset.error}
          onClose={() => setAsking(false)}
          onConfirm={() => reset.mutate(undefined, { onSuccess: () => setAsking(false) })}
        >
          <Text size="sm">
            <Trans>This discards all changes of the node's alarm rules.</Trans>
          </Text>
        </Confirm>
      )}
    </Stack>
  );
}
