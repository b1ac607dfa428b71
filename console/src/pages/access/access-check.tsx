import {
  ActionIcon,
  Alert,
  Button,
  Checkbox,
  PasswordInput,
  Select,
  Stack,
  Switch,
  Text,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconX, IconZoomQuestion } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { useChange, type Schemas } from '../../api/client';
import { send } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { Panel } from '../../ui/page';
import { quoted, ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { useUrlState } from '../../ui/url-state';

type Check = Schemas['AccessCheck'];

interface Action {
  action: 'publish' | 'subscribe';
  topic: string;
  qos: number;
  retain: boolean;
}

const path = '/api/v1/access-check';
const maxActions = 20;

/** The action that a link names. */
function linkedActions(): Action[] {
  const query = new URLSearchParams(location.search);
  const action = query.get('action') === 'subscribe' ? 'subscribe' : 'publish';
  return [{ action, topic: query.get('topic') ?? '', qos: 0, retain: false }];
}

/** May this client log in, and may it publish and subscribe there? With what decides. */
export function AccessCheck() {
  const { t } = useLingui();
  const caller = useCaller();
  const [clientId, setClientId] = useUrlState('client');
  const [username, setUsername] = useUrlState('user');
  const [tries, setTries] = useState(false);
  const [password, setPassword] = useState('');
  const [address, setAddress] = useState('');
  const [actions, setActions] = useState<Action[]>(linkedActions);
  const asked = actions.filter(({ topic }) => topic !== '');
  const body = {
    client_id: clientId,
    ...(username ? { username } : {}),
    ...(tries ? { login: true, ...(password ? { password } : {}), ...(address ? { address } : {}) } : {}),
    actions: asked,
  };
  const check = useChange(() => send<Check>('POST', path, { body }), []);
  const mayCheck = mayOnNode(caller, 'operator');
  const change = (index: number, next: Partial<Action>) =>
    setActions(actions.map((each, at) => (at === index ? { ...each, ...next } : each)));
  const hasWildcard = ({ action, topic }: Action) => action === 'publish' && /[+#]/.test(topic);
  const isReady = clientId !== '' && (tries || asked.length > 0) && !asked.some(hasWildcard);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isReady) check.mutate(undefined);
  };
  const command = [
    `acl check ${quoted(clientId || 'CLIENT')}`,
    username && `--username ${quoted(username)}`,
    tries && '--try-login',
    ...asked.map(({ action, topic }) => `--${action} ${quoted(topic)}`),
  ]
    .filter(Boolean)
    .join(' ');
  return (
    <div className="grid">
      <Panel title={<Trans>Question</Trans>}>
        <form onSubmit={submit}>
          <Stack gap="sm">
            <Text size="sm" c="dimmed">
              <Trans>Nothing changes and nothing is counted: the node only answers what it would do.</Trans>
            </Text>
            <TextInput
              label={t`Client id`}
              required
              value={clientId}
              onChange={(event) => setClientId(event.currentTarget.value)}
            />
            <TextInput
              label={t`User name`}
              value={username}
              onChange={(event) => setUsername(event.currentTarget.value)}
            />
            <Switch
              label={t`Try a login, too`}
              description={t`Otherwise the answer is for the session of the client, or for its names alone.`}
              checked={tries}
              onChange={(event) => setTries(event.currentTarget.checked)}
            />
            {tries && (
              <>
                <PasswordInput
                  label={t`Password`}
                  autoComplete="off"
                  value={password}
                  onChange={(event) => setPassword(event.currentTarget.value)}
                />
                <TextInput
                  label={t`Address of the client`}
                  placeholder="203.0.113.7"
                  value={address}
                  onChange={(event) => setAddress(event.currentTarget.value)}
                />
              </>
            )}
            {actions.map((action, index) => (
              <div className="row wrap" key={index}>
                <Select
                  aria-label={t`Action`}
                  w={140}
                  allowDeselect={false}
                  value={action.action}
                  onChange={(next) => change(index, { action: next === 'subscribe' ? 'subscribe' : 'publish' })}
                  data={[
                    { value: 'publish', label: t`may publish` },
                    { value: 'subscribe', label: t`may subscribe` },
                  ]}
                />
                <TextInput
                  aria-label={t`Topic`}
                  placeholder={action.action === 'publish' ? 'd/pump-7/t' : 'd/+/t'}
                  className="grow"
                  miw={140}
                  classNames={{ input: 'mono' }}
                  value={action.topic}
                  error={hasWildcard(action) ? t`A topic to publish to has no wildcards` : undefined}
                  onChange={(event) => change(index, { topic: event.currentTarget.value })}
                />
                <Select
                  aria-label={t`QoS`}
                  w={96}
                  allowDeselect={false}
                  value={String(action.qos)}
                  onChange={(qos) => change(index, { qos: Number(qos) })}
                  data={['0', '1', '2'].map((qos) => ({ value: qos, label: t`QoS ${qos}` }))}
                />
                {action.action === 'publish' && (
                  <Checkbox
                    label={t`Retain`}
                    checked={action.retain}
                    onChange={(event) => change(index, { retain: event.currentTarget.checked })}
                  />
                )}
                {actions.length > 1 && (
                  <ActionIcon
                    aria-label={t`Remove`}
                    onClick={() => setActions(actions.filter((_, at) => at !== index))}
                  >
                    <IconX size={14} />
                  </ActionIcon>
                )}
              </div>
            ))}
            {actions.length < maxActions && (
              <Button
                variant="subtle"
                size="compact-xs"
                style={{ alignSelf: 'flex-start' }}
                leftSection={<IconPlus size={12} />}
                onClick={() => setActions([...actions, { action: 'subscribe', topic: '', qos: 0, retain: false }])}
              >
                <Trans>Add a topic</Trans>
              </Button>
            )}
            {check.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {check.error.message}
              </Text>
            )}
            {!mayCheck && (
              <Text size="sm" c="dimmed">
                <Trans>This needs the role operator.</Trans>
              </Text>
            )}
            <div className="row wrap" style={{ justifyContent: 'space-between' }}>
              <ShowCall
                method="POST"
                path={path}
                body={{ ...body, ...(password ? { password: 'PASSWORD' } : {}) }}
                ctl={command}
              />
              <Button
                type="submit"
                leftSection={<IconZoomQuestion size={14} />}
                loading={check.isPending}
                disabled={!mayCheck || !isReady}
              >
                <Trans>Check</Trans>
              </Button>
            </div>
          </Stack>
        </form>
      </Panel>
      <Panel title={<Trans>Answer</Trans>}>
        <div aria-live="polite">
          {check.data ? (
            <Answer check={check.data} />
          ) : (
            <Text size="sm" c="dimmed">
              <Trans>Whether the client may do it, and which rule decides.</Trans>
            </Text>
          )}
        </div>
      </Panel>
    </div>
  );
}

function Answer({ check }: { check: Check }) {
  const { login, actions, basis } = check;
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {basis === 'session' ? (
          <Trans>For the session of the client, with the permissions of its last login.</Trans>
        ) : basis === 'login' ? (
          <Trans>For this login.</Trans>
        ) : (
          <Trans>For these names alone, because the client has no session.</Trans>
        )}
      </Text>
      {login && (
        <Stack gap={6}>
          <StateBadge health={login.accepted ? 'good' : 'critical'}>
            {login.accepted ? <Trans>The login is accepted</Trans> : <Trans>The login is rejected</Trans>}
          </StateBadge>
          {!login.accepted && login.reason && (
            <Alert color="red" variant="light">
              {login.reason}
            </Alert>
          )}
          <table className="data-table">
            <thead>
              <tr>
                <th scope="col">
                  <Trans>Authenticator</Trans>
                </th>
                <th scope="col">
                  <Trans>Answer</Trans>
                </th>
              </tr>
            </thead>
            <tbody>
              {login.authenticators.map((each) => (
                <tr key={each.id}>
                  <td>{each.id}</td>
                  <td>
                    <AuthenticatorAnswer answer={each.answer} />
                    {each.error && `: ${each.error}`}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Stack>
      )}
      {actions.length > 0 && (
        <ul className="plain-list">
          {actions.map((outcome, index) => (
            <li key={index}>
              <div className="row wrap">
                <StateBadge health={outcome.allowed ? 'good' : 'critical'}>
                  {outcome.allowed ? <Trans>allowed</Trans> : <Trans>denied</Trans>}
                </StateBadge>
                <span>{outcome.action === 'publish' ? <Trans>publish</Trans> : <Trans>subscribe</Trans>}</span>
                <span className="mono">{outcome.topic}</span>
              </div>
              <div className="field-help">
                <Decision source={outcome.source} rule={outcome.rule} />
              </div>
            </li>
          ))}
        </ul>
      )}
    </Stack>
  );
}

function AuthenticatorAnswer({ answer }: { answer: string }) {
  switch (answer) {
    case 'accepted':
      return <Trans>accepts the client</Trans>;
    case 'rejected':
      return <Trans>rejects the client</Trans>;
    case 'ignored':
      return <Trans>does not know the client</Trans>;
    case 'failed':
      return <Trans>could not answer</Trans>;
    default:
      return <Trans>is not for such credentials</Trans>;
  }
}

/** What decided about an action. */
export function Decision({ source, rule }: { source: string; rule: string | null }) {
  if (source === 'store' && rule) {
    return (
      <Trans>
        decided by the rule{' '}
        <Link href={`/access/mqtt?tab=rules&edit=${encodeURIComponent(rule)}`} className="link">
          {rule}
        </Link>
      </Trans>
    );
  }
  switch (source) {
    case 'superuser':
      return <Trans>the client is a superuser</Trans>;
    case 'device':
      return <Trans>decided by the permissions that every device has</Trans>;
    case 'client':
      return <Trans>decided by a rule that the authenticator of the client gave</Trans>;
    case 'external':
      return <Trans>decided by a rule of a rule source</Trans>;
    case 'file':
      return <Trans>decided by the rule {rule} of the configuration</Trans>;
    default:
      return <Trans>no rule matches: the default applies</Trans>;
  }
}
