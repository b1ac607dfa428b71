import { Badge, Button, Group, PasswordInput, Select, Stack, Text, TextInput } from '@mantine/core';
import { useMantineColorScheme } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { useChange } from '../../api/client';
import { send } from '../../api/objects';
import { logOut, useCaller } from '../../api/session';
import { languages, switchLanguage, type Language } from '../../i18n';
import { Confirm } from '../../ui/confirm';
import { Facts, Page, Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { RoleName } from '../access/grants';
import { PasswordForm } from '../access/password-form';

/** The own account. */
export default function ProfilePage() {
  const { t } = useLingui();
  const caller = useCaller();
  const isPerson = caller.authentication === 'token';
  return (
    <Page title={t`Account`}>
      <div className="grid">
        <Panel title={<Trans>Account</Trans>}>
          <Facts
            rows={[
              [<Trans>Name</Trans>, caller.name],
              [<Trans>Role on the whole node</Trans>, caller.role === null ? '–' : <RoleName role={caller.role} />],
              [
                <Trans>Roles in namespaces</Trans>,
                caller.namespaces.length === 0
                  ? '–'
                  : caller.namespaces.map((grant) => (
                      <Badge key={grant.namespace} variant="default" tt="none" mr={4}>
                        {grant.namespace}: <RoleName role={grant.role} />
                      </Badge>
                    )),
              ],
              [<Trans>Time zone</Trans>, Intl.DateTimeFormat().resolvedOptions().timeZone],
            ]}
          />
        </Panel>
        <Appearance />
        {isPerson && <Password />}
        {isPerson && <Email />}
        {isPerson && <Sessions />}
      </div>
      {!isPerson && (
        <Text size="sm" c="dimmed">
          <Trans>This page is used without a login; there is no password to change.</Trans>
        </Text>
      )}
    </Page>
  );
}

function Appearance() {
  const { t, i18n } = useLingui();
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  return (
    <Panel title={<Trans>Appearance</Trans>}>
      <Stack gap="sm">
        <Select
          label={t`Theme`}
          allowDeselect={false}
          value={colorScheme}
          onChange={(value) => setColorScheme((value ?? 'auto') as 'light' | 'dark' | 'auto')}
          data={[
            { value: 'auto', label: t`as the system` },
            { value: 'light', label: t`light` },
            { value: 'dark', label: t`dark` },
          ]}
        />
        <Select
          label={t`Language`}
          allowDeselect={false}
          value={i18n.locale}
          onChange={(value) => void switchLanguage((value ?? 'en') as Language)}
          data={Object.entries(languages).map(([value, label]) => ({ value, label }))}
        />
      </Stack>
    </Panel>
  );
}

function Password() {
  const { t } = useLingui();
  return (
    <Panel title={<Trans>Password</Trans>}>
      <PasswordForm
        description={t`At least 8 characters. The change ends all other sessions.`}
        onChanged={() =>
          notifications.show({ message: t`The password was changed, and all other sessions have ended.` })
        }
      />
    </Panel>
  );
}

function Email() {
  const { t } = useLingui();
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const change = useChange(
    () =>
      send('PUT', '/api/v1/me/email', {
        body: { current_password: password, email: email.trim() === '' ? null : email.trim() },
      }),
    [],
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate(undefined, {
      onSuccess: () => {
        setPassword('');
        notifications.show({ message: t`The e-mail address was changed.` });
      },
    });
  };
  return (
    <Panel title={<Trans>E-mail</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label={t`New e-mail address`}
            description={t`Empty: none.`}
            type="email"
            autoComplete="email"
            maxLength={254}
            value={email}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <PasswordInput
            label={t`Current password`}
            autoComplete="current-password"
            required
            value={password}
            error={change.error?.message}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          <Group justify="flex-end">
            <Button type="submit" loading={change.isPending} disabled={password === ''}>
              <Trans>Change the address</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Panel>
  );
}

function Sessions() {
  const [isAsking, setAsking] = useState(false);
  const end = useChange(async () => {
    await send('POST', '/api/v1/me/logout-everywhere');
    await logOut();
  }, []);
  return (
    <Panel title={<Trans>Sessions</Trans>}>
      <Stack gap="sm">
        <Text size="sm">
          <Trans>Ends all your sessions on all machines, this one too. API keys stay valid.</Trans>
        </Text>
        <Group justify="space-between">
          <ShowCall method="POST" path="/api/v1/me/logout-everywhere" />
          <Button variant="default" onClick={() => setAsking(true)}>
            <Trans>Log out everywhere</Trans>
          </Button>
        </Group>
      </Stack>
      {isAsking && (
        <Confirm
          title={<Trans>Log out everywhere?</Trans>}
          action={<Trans>Log out everywhere</Trans>}
          isPending={end.isPending}
          error={end.error}
          onClose={() => setAsking(false)}
          onConfirm={() => end.mutate(undefined)}
        >
          <Text size="sm">
            <Trans>This ends all your sessions, and streams that they have open.</Trans>
          </Text>
        </Confirm>
      )}
    </Panel>
  );
}
