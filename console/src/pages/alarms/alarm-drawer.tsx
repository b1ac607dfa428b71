import { Button, Drawer, Group, Stack, Text, Textarea, Timeline, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconCheck, IconTrash } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';
import { Link } from 'wouter';
import { useChange } from '../../api/client';
import { send, useObject } from '../../api/objects';
import { useCaller } from '../../api/session';
import { formatTime } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { Facts } from '../../ui/page';
import { quoted, ShowCall } from '../../ui/show-call';
import { ErrorState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { mayChangeAlarm } from './alarm-access';
import { AlarmSubject, alarmsPath, isCleared, type Alarm } from './alarm-list';
import { AlarmStateName, SeverityBadge } from './severity';

const refreshMs = 5_000;

/** One alarm: what happened to it, its values, and what can be done. */
export function AlarmDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  const alarm = useObject<Alarm>(alarmsPath, id, { every: refreshMs });
  return (
    <Drawer opened onClose={onClose} position="right" size="md" title={<Trans>Alarm {id}</Trans>}>
      {alarm.error && !alarm.data ? (
        <ErrorState error={alarm.error} retry={() => void alarm.refetch()} />
      ) : alarm.data ? (
        <Contents alarm={alarm.data} onClose={onClose} />
      ) : (
        <Loading />
      )}
    </Drawer>
  );
}

function Contents({ alarm, onClose }: { alarm: Alarm; onClose: () => void }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [isDeleting, setDeleting] = useState(false);
  const mayChange = mayChangeAlarm(caller, alarm);
  const path = `${alarmsPath}/${alarm.id}`;
  const changes = [[alarmsPath], ['alarm-counts']];
  const act = useChange((action: 'acknowledge' | 'clear') => send('POST', `${path}/${action}`), changes);
  const values = Object.entries(alarm.values as Record<string, unknown>);
  const isAcknowledged = alarm.acknowledged_at_ms != null;
  return (
    <Stack gap="md">
      <Group gap="md">
        <SeverityBadge severity={alarm.severity} isCleared={isCleared(alarm)} />
        <AlarmStateName state={alarm.state} />
      </Group>
      {alarm.details && <Text>{alarm.details}</Text>}
      <Facts
        rows={[
          [<Trans>Type</Trans>, <span className="mono">{alarm.type}</span>],
          [<Trans>Device</Trans>, <AlarmSubject alarm={alarm} />],
          [
            <Trans>Raised by</Trans>,
            alarm.rule ? (
              <Link href={`/rules/${encodeURIComponent(alarm.rule)}`} className="link">
                <Trans>rule {alarm.rule}</Trans>
              </Link>
            ) : alarm.productId === '$node' ? (
              <Trans>the alarm rules of the node</Trans>
            ) : (
              <Link href={`/products/${encodeURIComponent(alarm.productId)}?tab=alarms`} className="link">
                <Trans>product {alarm.productId}</Trans>
              </Link>
            ),
          ],
          ...values.map(([key, value]): [ReactNode, ReactNode] => [
            <span className="mono">{key}</span>,
            typeof value === 'string' ? value : JSON.stringify(value),
          ]),
          ...(alarm.notify.length > 0
            ? [[<Trans>Notifications</Trans>, alarm.notify.join(', ')] as [ReactNode, ReactNode]]
            : []),
        ]}
      />
      <Timeline active={9} bulletSize={14} lineWidth={2}>
        {steps(alarm).map(({ title, ms, by }, index) => (
          <Timeline.Item key={index} title={title}>
            <Text size="xs" c="dimmed">
              {formatTime(ms)} (<Ago ms={ms} />)
              {by && (
                <>
                  {' '}
                  <Trans>by {by}</Trans>
                </>
              )}
            </Text>
          </Timeline.Item>
        ))}
      </Timeline>
      <Comments alarm={alarm} mayChange={mayChange} />
      {act.error && (
        <Text size="sm" c="var(--tg-critical)" role="alert">
          {act.error.message}
        </Text>
      )}
      <div className="drawer-footer">
        <ShowCall method="POST" path={`${path}/acknowledge`} ctl={`alarms ack ${alarm.id}`} />
        {mayChange && (
          <div className="row wrap">
            <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
              <Trans>Delete</Trans>
            </Button>
            {!isCleared(alarm) && (
              <Button variant="default" loading={act.isPending} onClick={() => act.mutate('clear')}>
                <Trans>Clear</Trans>
              </Button>
            )}
            {!isAcknowledged && (
              <Button
                leftSection={<IconCheck size={14} />}
                loading={act.isPending}
                onClick={() => act.mutate('acknowledge')}
              >
                <Trans>Acknowledge</Trans>
              </Button>
            )}
          </div>
        )}
      </div>
      {isDeleting && (
        <ConfirmDeletion
          title={<Trans>Delete alarm {alarm.id}?</Trans>}
          action={<Trans>Delete</Trans>}
          call={{ path, ctl: `alarms delete ${alarm.id}` }}
          onClose={() => setDeleting(false)}
          invalidates={changes}
          message={t`Alarm ${alarm.id} was deleted.`}
          onDeleted={onClose}
        >
          <Text size="sm">
            <Trans>
              This deletes the alarm {alarm.type} of {alarm.deviceId} with its history. If its condition still holds,
              the next message of the device raises another.
            </Trans>
          </Text>
        </ConfirmDeletion>
      )}
    </Stack>
  );
}

/** What people wrote about the alarm, and a field for more. */
function Comments({ alarm, mayChange }: { alarm: Alarm; mayChange: boolean }) {
  const { t } = useLingui();
  const [text, setText] = useState('');
  const path = `${alarmsPath}/${alarm.id}/comments`;
  const body = { text: text.trim() };
  const add = useChange(() => send('POST', path, { body }), [[alarmsPath]]);
  const comments = alarm.comments ?? [];
  if (!mayChange && comments.length === 0) return null;
  return (
    <Stack gap="xs">
      <Title order={3}>
        <Trans>Comments</Trans>
      </Title>
      {comments.map(({ at_ms, by, text }) => (
        <div key={`${at_ms} ${by}`}>
          <Text size="sm" className="comment-text">
            {text}
          </Text>
          <Text size="xs" c="dimmed">
            {by}, <Ago ms={at_ms} />
          </Text>
        </div>
      ))}
      {mayChange && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            add.mutate(undefined, { onSuccess: () => setText('') });
          }}
        >
          <Textarea
            aria-label={t`Comment`}
            placeholder={t`Write a comment`}
            autosize
            minRows={2}
            maxRows={8}
            maxLength={1000}
            value={text}
            onChange={(event) => setText(event.currentTarget.value)}
            error={add.error?.message}
          />
          <Group justify="space-between" mt="xs">
            <ShowCall method="POST" path={path} body={body} ctl={`alarms comment ${alarm.id} ${quoted(body.text)}`} />
            <Button type="submit" variant="default" disabled={body.text === ''} loading={add.isPending}>
              <Trans>Add the comment</Trans>
            </Button>
          </Group>
        </form>
      )}
    </Stack>
  );
}

interface Step {
  title: ReactNode;
  ms: number;
  by?: string | null;
}

/** What happened to the alarm, in the order of time. */
function steps(alarm: Alarm): Step[] {
  const all: Step[] = [{ title: <Trans>Raised</Trans>, ms: alarm.raised_at_ms }];
  if (alarm.changed_at_ms > alarm.raised_at_ms) {
    all.push({ title: <Trans>Severity changed</Trans>, ms: alarm.changed_at_ms });
  }
  if (alarm.acknowledged_at_ms != null) {
    all.push({ title: <Trans>Acknowledged</Trans>, ms: alarm.acknowledged_at_ms, by: alarm.acknowledged_by });
  }
  if (alarm.cleared_at_ms != null) {
    all.push({
      title: alarm.cleared_by ? <Trans>Cleared</Trans> : <Trans>Cleared by its condition</Trans>,
      ms: alarm.cleared_at_ms,
      by: alarm.cleared_by,
    });
  }
  return all.sort((a, b) => a.ms - b.ms);
}
