import { Button, NumberInput, PasswordInput, Popover, Stack, Text, TextInput, Autocomplete } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPlay, IconPlayerStop, IconPlugConnected } from '@tabler/icons-react';
import { useEffect, useRef, useState, type FormEvent } from 'react';
import { useLocation } from 'wouter';
import { api, unwrap, useRead } from '../../api/client';
import { webSocketAddresses, type MqttLogin } from '../../api/mqtt';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { ShowCall } from '../../ui/show-call';
import { StateBadge, type Health } from '../../ui/state-badge';
import { useUrlState } from '../../ui/url-state';
import { subscribeCommand } from './commands';
import { MessageList } from './message-list';
import { MessageTrace } from './message-trace';
import { PublishPanel, type Draft } from './publish-panel';
import { RetainedMessages } from './retained-messages';
import { SubscribedFilters } from './subscribed-filters';
import { TopicTree } from './topic-tree';
import { filterProblem } from './topics';
import { useLiveClient, type LiveState } from './use-live-client';
import './live.css';

export default function LivePage() {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  return (
    <Page title={t`Live`} description={t`Messages as they are published, what happens to them, and who subscribes.`}>
      <PageTabs
        tabs={[
          { id: 'messages', label: <Trans>Messages</Trans>, content: <Messages /> },
          {
            id: 'topics',
            label: <Trans>Topics</Trans>,
            content: <TopicTree onWatch={(filter) => navigate(`/live?${new URLSearchParams({ filter })}`)} />,
          },
          { id: 'retained', label: <Trans>Retained messages</Trans>, content: <RetainedMessages /> },
          { id: 'trace', label: <Trans>Message trace</Trans>, content: <MessageTrace /> },
          { id: 'filters', label: <Trans>Subscribed filters</Trans>, content: <SubscribedFilters /> },
        ]}
      />
    </Page>
  );
}

function Messages() {
  const { t } = useLingui();
  const [filter, setFilter] = useUrlState('filter');
  const [typed, setTyped] = useState(filter || '#');
  const [settled] = useDebouncedValue(typed, 300);
  const [qos, setQos] = useState<0 | 1 | 2>(0);
  const live = useLiveClient();
  /** The filter that was subscribed last. */
  const started = useRef<string | null>(null);
  const [login, setLogin] = useState<MqttLogin>({ url: '' });
  const [draft, setDraft] = useState<Draft>({ topic: '', payload: '', qos: 0, retain: false });
  const listeners = useRead(['listeners'], (signal) => unwrap(api.GET('/api/v1/listeners', { signal })));
  const addresses = webSocketAddresses(listeners.data?.data ?? []);
  const effective = { ...login, url: login.url || (addresses[0] ?? '') };
  const problem = filterProblem(typed);
  const canStart = problem === null && effective.url !== '';
  const start = (event?: FormEvent) => {
    event?.preventDefault();
    if (!canStart) return;
    started.current = typed;
    setFilter(typed);
    live.buffer.clear();
    live.buffer.setPaused(false);
    live.start(effective, typed, qos);
  };
  // A link that names a filter, and a topic that is found by the search, show their messages at once.
  const { start: connect, buffer } = live;
  const { url } = effective;
  useEffect(() => {
    if (filter === '' || filter === started.current || url === '' || filterProblem(filter) !== null) return;
    started.current = filter;
    setTyped(filter);
    buffer.clear();
    buffer.setPaused(false);
    connect({ ...login, url }, filter, qos);
  }, [buffer, connect, filter, login, qos, url]);
  useEffect(
    () => () => {
      started.current = null;
    },
    [],
  );

  return (
    <div className="live-layout">
      <section className="panel live-messages">
        <form className="table-toolbar wrap" onSubmit={start}>
          <TextInput
            className="grow live-filter"
            classNames={{ input: 'mono' }}
            aria-label={t`Topic filter`}
            placeholder="plant/+/temperature"
            value={typed}
            onChange={(event) => setTyped(event.currentTarget.value)}
            error={
              settled !== typed
                ? false
                : problem === 'hash'
                  ? t`# stands for the remaining levels and has to be the last one`
                  : problem === 'plus'
                    ? t`+ stands for one whole level`
                    : problem === 'long'
                      ? t`at most 65,535 bytes`
                      : false
            }
          />
          <NumberInput
            aria-label={t`QoS`}
            prefix="QoS "
            w={92}
            min={0}
            max={2}
            clampBehavior="strict"
            allowDecimal={false}
            value={qos}
            onChange={(value) => setQos((Number(value) || 0) as 0 | 1 | 2)}
          />
          {live.state === 'idle' ? (
            <Button type="submit" size="sm" leftSection={<IconPlayerPlay size={14} />} disabled={!canStart}>
              <Trans>Subscribe</Trans>
            </Button>
          ) : live.filter !== typed ? (
            <Button type="submit" size="sm" disabled={!canStart}>
              <Trans>Change</Trans>
            </Button>
          ) : (
            <Button size="sm" variant="default" leftSection={<IconPlayerStop size={14} />} onClick={live.stop}>
              <Trans>Stop</Trans>
            </Button>
          )}
          <Connection addresses={addresses} login={effective} onChange={setLogin} state={live.state} />
        </form>
        {live.problem && (
          <Text size="sm" c="var(--tg-critical)" role="alert" px="sm" py={6}>
            {live.problem}
          </Text>
        )}
        {listeners.data && addresses.length === 0 && login.url === '' && (
          <Text size="sm" px="sm" py={6} c="var(--tg-warning)" role="status">
            <Trans>
              The node has no WebSocket listener that this page could use. Add one with --ws ADDR, or enter the address
              of one under "Connection".
            </Trans>
          </Text>
        )}
        <MessageList
          live={live}
          call={<ShowCall command={subscribeCommand(effective, typed, qos)} />}
          onPublishAgain={(message) => setDraft({ ...message, qos: message.qos as 0 | 1 | 2, retain: false })}
        />
      </section>
      <PublishPanel draft={draft} onChange={setDraft} live={live} login={effective} />
    </div>
  );
}

const stateHealth: Record<LiveState, Health> = {
  idle: 'unknown',
  connecting: 'unknown',
  connected: 'good',
  waiting: 'warning',
};

/** Where the page connects to, and as whom. */
function Connection({
  addresses,
  login,
  onChange,
  state,
}: {
  addresses: string[];
  login: MqttLogin;
  onChange: (login: MqttLogin) => void;
  state: LiveState;
}) {
  const { t } = useLingui();
  return (
    <div className="row">
      <Popover position="bottom-end" withArrow shadow="md" trapFocus>
        <Popover.Target>
          <Button size="sm" variant="default" leftSection={<IconPlugConnected size={14} />}>
            <Trans>Connection</Trans>
          </Button>
        </Popover.Target>
        <Popover.Dropdown className="connection-form">
          <Stack gap="xs">
            <Autocomplete
              label={t`Address`}
              description={t`A WebSocket listener of the node.`}
              placeholder="ws://HOST:8083/mqtt"
              data={addresses}
              value={login.url}
              comboboxProps={{ withinPortal: false }}
              onChange={(url) => onChange({ ...login, url })}
              error={login.url !== '' && !/^wss?:\/\/./.test(login.url) ? t`ws:// or wss:// with host and port` : false}
            />
            <TextInput
              label={t`User`}
              description={t`Empty: anonymous, which listeners on the machine of the node accept.`}
              autoComplete="off"
              value={login.username ?? ''}
              onChange={(event) => onChange({ ...login, username: event.currentTarget.value })}
            />
            <PasswordInput
              label={t`Password`}
              description={t`Kept in this page only, until it is closed.`}
              autoComplete="off"
              value={login.password ?? ''}
              onChange={(event) => onChange({ ...login, password: event.currentTarget.value })}
            />
            <TextInput
              label={t`Client id`}
              description={t`Empty: a random one.`}
              value={login.clientId ?? ''}
              onChange={(event) => onChange({ ...login, clientId: event.currentTarget.value })}
            />
          </Stack>
        </Popover.Dropdown>
      </Popover>
      <StateBadge health={stateHealth[state]}>
        {state === 'connected' ? (
          <Trans>connected</Trans>
        ) : state === 'connecting' ? (
          <Trans>connecting</Trans>
        ) : state === 'waiting' ? (
          <Trans>connecting again</Trans>
        ) : (
          <Trans>not connected</Trans>
        )}
      </StateBadge>
    </div>
  );
}
