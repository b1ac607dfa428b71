import { Button, Stack, Text, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { logOut, type Caller } from '../../api/session';
import { PasswordForm } from './password-form';

/** Before anything else, for operators whose password was generated or set by somebody else. */
export function ChangePasswordPage({ caller }: { caller: Caller }) {
  const { t } = useLingui();
  return (
    <main className="login">
      <div className="panel">
        <Stack className="panel-body" gap="sm">
          <Title order={1}>
            <Trans>Choose a password</Trans>
          </Title>
          <Text size="sm" c="dimmed">
            <Trans>
              The password of {caller.name} was generated or set by somebody else. Choose one that only you know.
            </Trans>
          </Text>
          <PasswordForm description={t`At least 8 characters.`} autoFocus />
          <Button variant="subtle" color="gray" fullWidth onClick={() => void logOut()}>
            <Trans>Log out</Trans>
          </Button>
        </Stack>
      </div>
    </main>
  );
}
