import { Button, Checkbox, Group, SegmentedControl, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSend } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { connected, type MqttLogin } from '../../api/mqtt';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { publishOptions } from './commands';
import { isTopic } from './topics';
import type { LiveClient } from './use-live-client';

export interface Draft {
  topic: string;
  payload: string;
  qos: 0 | 1 | 2;
  retain: boolean;
}

/** Publishes as an MQTT client: with the connection of the subscription, or one of its own. */
export function PublishPanel({
  draft,
  onChange,
  live,
  login,
}: {
  draft: Draft;
  onChange: (draft: Draft) => void;
  live: LiveClient;
  login: MqttLogin;
}) {
  const { t } = useLingui();
  const [isPending, setPending] = useState(false);
  const [outcome, setOutcome] = useState<{ isError: boolean; text: string } | null>(null);
  const { topic, payload, qos, retain } = draft;
  const isWrong = topic !== '' && !isTopic(topic);
  const looksLikeJson = /^\s*[[{]/.test(payload);
  const jsonProblem = looksLikeJson ? problemOfJson(payload) : null;
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setPending(true);
    setOutcome(null);
    try {
      const shared = live.client();
      const client = shared ?? (await connected(login));
      const packet = await client.publishAsync(topic, payload, { qos, retain });
      // MQTT 5: accepted, and nobody subscribes.
      const reason = (packet as { reasonCode?: number } | undefined)?.reasonCode;
      setOutcome({
        isError: false,
        text: reason === 16 ? t`Published; nobody subscribes to this topic.` : t`Published.`,
      });
      if (!shared) await client.endAsync();
    } catch (error) {
      setOutcome({ isError: true, text: (error as Error).message });
    } finally {
      setPending(false);
    }
  };
  return (
    <Panel title={<Trans>Publish</Trans>}>
      <form onSubmit={(event) => void submit(event)}>
        <Stack gap="sm">
          <TextInput
            label={t`Topic`}
            classNames={{ input: 'mono' }}
            value={topic}
            required
            placeholder="plant/7/temperature"
            error={isWrong ? t`a topic has no + and no #` : false}
            onChange={(event) => onChange({ ...draft, topic: event.currentTarget.value })}
          />
          <Textarea
            label={t`Payload`}
            classNames={{ input: 'mono' }}
            autosize
            minRows={5}
            maxRows={16}
            value={payload}
            placeholder='{"value": 21.5}'
            description={jsonProblem ? t`Not valid JSON: ${jsonProblem}` : undefined}
            inputWrapperOrder={['label', 'input', 'description', 'error']}
            onChange={(event) => onChange({ ...draft, payload: event.currentTarget.value })}
          />
          <Group justify="space-between">
            <SegmentedControl
              size="xs"
              aria-label={t`QoS`}
              value={String(qos)}
              onChange={(value) => onChange({ ...draft, qos: Number(value) as 0 | 1 | 2 })}
              data={['0', '1', '2'].map((value) => ({ value, label: `QoS ${value}` }))}
            />
            <Checkbox
              size="xs"
              label={t`Retain`}
              checked={retain}
              onChange={(event) => onChange({ ...draft, retain: event.currentTarget.checked })}
            />
          </Group>
          <Group justify="space-between">
            <ShowCall method="POST" path="/api/v1/publish" body={draft} ctl={`publish ${publishOptions(draft)}`} />
            <Button
              type="submit"
              loading={isPending}
              disabled={!isTopic(topic) || login.url === ''}
              leftSection={<IconSend size={14} />}
            >
              <Trans>Publish</Trans>
            </Button>
          </Group>
          <Text size="sm" role="status" c={outcome?.isError ? 'var(--tg-critical)' : 'var(--tg-good)'} mih={20}>
            {outcome?.text}
          </Text>
        </Stack>
      </form>
    </Panel>
  );
}

function problemOfJson(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}
