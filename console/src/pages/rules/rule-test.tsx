import { Alert, Button, Collapse, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconChevronDown, IconChevronRight, IconMessageDown } from '@tabler/icons-react';
import { useEffect, useRef, useState } from 'react';
import { api, unwrap, useRead, type Schemas } from '../../api/client';
import { withQuery } from '../../api/objects';
import { openStream, type StreamEvent } from '../../api/stream';
import { CopyText } from '../../ui/copy';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { topicFilters } from './language';
import { formatNanoseconds } from './rule-state';

type Outcome = Schemas['RuleTestOutcome'];

export interface Sample {
  topic: string;
  payload: string;
  clientId: string;
}

interface LiveMessage {
  direction: string;
  topic: string;
  payload: string;
  payload_encoding: string;
  is_truncated: boolean;
  publisher: string | null;
}

const settleMs = 350;
const waitMs = 30_000;
/** A browser opens few connections to one server at a time. */
const maxStreams = 3;
const maxPayloadBytes = 16_384;

/** JSON is sent as such, so that the plan sees what a device sends; other text as text. */
export function testEvent({ topic, payload, clientId }: Sample): Schemas['TestEventInput'] {
  return { topic, payload, client_id: clientId || 'test' } as Schemas['TestEventInput'];
}

/** The result of a test, repeated while the rule or the sample is edited. */
export function useRuleTest(rule: Record<string, unknown>, sample: Sample) {
  const body = { rule, event: testEvent(sample) };
  const [settled] = useDebouncedValue(JSON.stringify(body), settleMs);
  return useRead<Outcome>(
    ['rule-test', settled],
    (signal) => unwrap(api.POST('/api/v1/rules/test', { body: JSON.parse(settled), signal })),
    { keep: true, isConstant: true, enabled: typeof rule.sql === 'string' && rule.sql.trim() !== '' },
  );
}

export function RuleTest({
  sql,
  sample,
  onSample,
  outcome,
  problem,
  body,
}: {
  sql: string;
  sample: Sample;
  onSample: (sample: Sample) => void;
  outcome: Outcome | undefined;
  /** The statement is invalid; the outcome is that of an earlier one. */
  problem: boolean;
  body: unknown;
}) {
  const { t } = useLingui();
  return (
    <Panel title={<Trans>Test</Trans>} actions={<ShowCall method="POST" path="/api/v1/rules/test" body={body} />}>
      <Stack gap="sm">
        <NextMessage sql={sql} onMessage={onSample} sample={sample} />
        <Group grow align="flex-start">
          <TextInput
            label={t`Topic`}
            classNames={{ input: 'mono' }}
            value={sample.topic}
            onChange={(event) => onSample({ ...sample, topic: event.currentTarget.value })}
          />
          <TextInput
            label={t`Client id`}
            classNames={{ input: 'mono' }}
            value={sample.clientId}
            onChange={(event) => onSample({ ...sample, clientId: event.currentTarget.value })}
          />
        </Group>
        <Textarea
          label={t`Payload`}
          classNames={{ input: 'mono' }}
          autosize
          minRows={3}
          maxRows={12}
          value={sample.payload}
          onChange={(event) => onSample({ ...sample, payload: event.currentTarget.value })}
        />
        {outcome && <Result outcome={outcome} isOutdated={problem} />}
      </Stack>
    </Panel>
  );
}

/** Waits for the next message that FROM selects. */
function NextMessage({ sql, sample, onMessage }: { sql: string; sample: Sample; onMessage: (sample: Sample) => void }) {
  const { t } = useLingui();
  const [isWaiting, setWaiting] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const cancel = useRef<() => void>(undefined);
  useEffect(() => () => cancel.current?.(), []);
  const filters = topicFilters(sql);
  const take = () => {
    setWaiting(true);
    setProblem(null);
    const stop = (text: string | null) => {
      clearTimeout(timer);
      closeStreams.forEach((close) => close());
      setWaiting(false);
      setProblem(text);
    };
    const receive = ({ type, data }: StreamEvent) => {
      const message = data as LiveMessage;
      if (type !== 'message' || message.direction !== 'published') return;
      if (message.payload_encoding !== 'text') return stop(t`The message is not text.`);
      if (message.is_truncated) return stop(t`The message is longer than 16 KiB.`);
      stop(null);
      const { topic, payload, publisher } = message;
      onMessage({ ...sample, topic, payload, clientId: publisher ?? sample.clientId });
    };
    const timer = setTimeout(() => stop(t`No message arrived within 30 seconds.`), waitMs);
    const closeStreams = filters.slice(0, maxStreams).map((filter) =>
      openStream({
        path: withQuery('/api/v1/messages/live', { topic_filter: filter, payload_bytes: maxPayloadBytes }),
        hiddenMs: waitMs,
        onEvent: receive,
      }),
    );
    cancel.current = () => stop(null);
  };
  return (
    <div>
      <Group gap="xs">
        <Button
          variant="default"
          leftSection={<IconMessageDown size={14} />}
          loading={isWaiting}
          disabled={filters.length === 0}
          onClick={take}
        >
          <Trans>Take the next message</Trans>
        </Button>
        <Text size="xs" c="dimmed" className="mono">
          {filters.join(', ')}
        </Text>
      </Group>
      {problem && (
        <Text size="xs" c="var(--tg-critical)" role="alert" mt={4}>
          {problem}
        </Text>
      )}
    </div>
  );
}

function Result({ outcome, isOutdated }: { outcome: Outcome; isOutdated: boolean }) {
  const [isPlanOpen, setPlanOpen] = useState(false);
  const failed = (outcome as { failed?: boolean }).failed === true;
  return (
    <Stack gap="sm" style={isOutdated ? { opacity: 0.5 } : undefined} aria-live="polite">
      <div className="row wrap">
        {outcome.matched ? (
          <StateBadge health="good">
            <Plural value={outcome.outputs.length} one="# output" other="# outputs" />
          </StateBadge>
        ) : (
          <StateBadge health={failed ? 'critical' : 'unknown'}>
            {failed ? <Trans>The evaluation fails</Trans> : <Trans>No output</Trans>}
          </StateBadge>
        )}
        <span className="dimmed">{formatNanoseconds(outcome.duration_ns)}</span>
        <span className="dimmed">
          <Trans>dialect {outcome.dialect}</Trans>
        </span>
      </div>
      {outcome.reason && <Text size="sm">{outcome.reason}</Text>}
      {outcome.compared && outcome.compared.length > 0 && (
        <table className="data-table">
          <tbody>
            {outcome.compared.map(({ expression, value }) => (
              <tr key={expression}>
                <th scope="row" className="mono">
                  {expression}
                </th>
                <td className="mono">{value}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {outcome.payload_problem && (
        <Alert color="yellow" variant="light">
          <Trans>Payload: {outcome.payload_problem}</Trans>
        </Alert>
      )}
      {outcome.warnings.map((warning) => (
        <Alert key={warning} color="yellow" variant="light">
          {warning}
        </Alert>
      ))}
      {outcome.outputs.length > 0 && (
        <div>
          <Text size="xs" c="dimmed" mb={4}>
            <Trans>Output</Trans>
          </Text>
          <CopyText text={outcome.outputs.map((each) => JSON.stringify(each, null, 2)).join('\n')} />
        </div>
      )}
      {outcome.actions.length > 0 && (
        <div>
          <Text size="xs" c="dimmed" mb={4}>
            <Trans>What the actions would do</Trans>
          </Text>
          <CopyText text={outcome.actions.map((each) => JSON.stringify(each, null, 2)).join('\n')} />
        </div>
      )}
      <div>
        <Button
          variant="subtle"
          color="gray"
          aria-expanded={isPlanOpen}
          leftSection={isPlanOpen ? <IconChevronDown size={14} /> : <IconChevronRight size={14} />}
          onClick={() => setPlanOpen(!isPlanOpen)}
        >
          <Trans>Plan</Trans>
        </Button>
        <Collapse expanded={isPlanOpen}>
          <CopyText text={outcome.plan} />
        </Collapse>
      </div>
    </Stack>
  );
}
